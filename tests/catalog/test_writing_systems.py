"""Names whose letters may be taken for others."""

import pytest

from catalog import writing_systems


@pytest.mark.parametrize(
    "name",
    [
        *("user:ada", "group:analysts_2", "Ærøskøbing", "Jiří Novák", "O’Brien", "Ðorđe"),
        *("Иванов", "ivan.Иванов@example.com", "Щўльга", "Тарасʼян", "Αθήνα-team", "Στέλλα"),
        *(
            "田中さくら",
            "東京タワー",
            "クラーク",
            "佐々木",
            "陳ㄔㄣˊ",
            "김민준",
            "東京Office",
            "한국LG",
        ),
        *("משה", "محمد علي", "हिन्दी", "ไทย", "საქართველო", "Հայկ", "የኢትዮጵያ", "отдел 2024"),
    ],
)
def test_names_of_one_language_are_accepted(name):
    assert writing_systems.mixed_word(name) is None


@pytest.mark.parametrize(
    ("name", "word", "scripts"),
    [
        ("user:\u0430da", "\u0430da", "Cyrillic and Latin"),
        ("pay\u0440al@example.com", "pay\u0440al", "Cyrillic and Latin"),
        ("group:\u039fps", "\u039fps", "Greek and Latin"),
        ("adm\u0456n", "adm\u0456n", "Cyrillic and Latin"),
        ("\ua4d0oss", "\ua4d0oss", "Latin and Lisu"),
        ("the \u13a0dmins", "\u13a0dmins", "Cherokee and Latin"),
        ("\u0421\u039d", "\u0421\u039d", "Cyrillic and Greek"),
        ("日本\u0430", "日本\u0430", "Cjk and Cyrillic"),
    ],
)
def test_a_word_of_several_scripts_is_found(name, word, scripts):
    assert writing_systems.mixed_word(name) == word
    assert writing_systems.describe(word) == scripts


@pytest.mark.parametrize(
    ("name", "labeled"),
    [
        ("user:ada", "user:ada"),
        ("user:田中", "user:田中"),
        ("user:\u0430\u0440\u0435", "user:\u0430\u0440\u0435 (Cyrillic letters)"),
        ("user:ada \u0391\u0392", "user:ada \u0391\u0392 (Greek letters)"),
    ],
)
def test_a_script_that_looks_like_latin_is_named(name, labeled):
    assert writing_systems.labeled(name) == labeled
