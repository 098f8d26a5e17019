"""The entry point that granian serves, by its RSGI interface."""

from api.front.application import Front
from config.wsgi import application as handler

application = Front(handler.answer)
