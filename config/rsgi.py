"""The RSGI entry point, which granian serves."""

from api.front.application import Front
from config.wsgi import application as handler

application = Front(handler.answer)
