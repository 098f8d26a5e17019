"""The writing systems of a name: letters of different ones may look the same, as Latin and Cyrillic a do.

Python knows the names of characters, not their scripts. The first word of a letter's name is its script.
"""

import re
import unicodedata

_WORD = re.compile(r"[^\W_]+")
_COMMON = {"MODIFIER", "KATAKANA-HIRAGANA", "DOUBLE", ""}
"""Beginnings of the names of letters that several scripts use."""
_SAME = {"IDEOGRAPHIC": "CJK"}
_USED_TOGETHER = (
    {"LATIN", "CJK", "HIRAGANA", "KATAKANA"},
    {"LATIN", "CJK", "BOPOMOFO"},
    {"LATIN", "CJK", "HANGUL"},
)
"""Scripts that one word may mix: the level "highly restrictive" of Unicode Technical Standard 39."""
_LIKE_LATIN = {"CYRILLIC", "GREEK", "COPTIC", "ARMENIAN", "CHEROKEE", "LISU"}
"""Scripts with many letters that look like Latin ones."""


def mixed_word(text: str) -> str | None:
    """The first word that mixes letters of scripts that no language writes together; None: there is none."""
    if text.isascii():
        return None
    for word in _WORD.findall(text):
        scripts = _scripts(word)
        if len(scripts) > 1 and not any(scripts <= together for together in _USED_TOGETHER):
            return str(word)
    return None


def describe(text: str) -> str:
    """The scripts in which a name may look like a Latin one, for people: "Cyrillic"; empty if there are none.

    Names of other scripts cannot be taken for Latin ones.
    """
    if text.isascii():
        return ""
    scripts = _scripts(text) & _LIKE_LATIN
    if mixed_word(text) is not None:
        scripts = _scripts(text)
    return " and ".join(sorted(script.capitalize() for script in scripts))


def labeled(name: str) -> str:
    """A name with its scripts, if they can be taken for Latin, for texts in which a person decides."""
    scripts = describe(name)
    return f"{name} ({scripts} letters)" if scripts else name


def _scripts(text: str) -> set[str]:
    return {_script(char) for char in text if unicodedata.category(char)[0] == "L"} - _COMMON


def _script(letter: str) -> str:
    first = unicodedata.name(letter, "").partition(" ")[0]
    return _SAME.get(first, first)
