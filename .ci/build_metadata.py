"""The extra ``server`` of the wheel: the requirements of requirements.txt."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ServerRequirements(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        lines = (Path(self.root) / "requirements.txt").read_text().splitlines()
        texts = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
        metadata["optional-dependencies"] = {"server": [text for text in texts if text]}
