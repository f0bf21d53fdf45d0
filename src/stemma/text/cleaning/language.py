"""Language identification without a model: by script, and for Latin script by function words.

Function words are a third to a half of running text and rare in other languages, so a few sentences are enough. A word
of several languages counts for each of them in part; words that mean something else in English ("man", "war", "men")
are left out. docs/how-to/cleaning.md has the measured accuracy. It is meant for filtering documents; for hundreds of
languages or single words a trained identifier (fastText's, which datatrove downloads) is better.
"""

from __future__ import annotations

import re
from collections import Counter

from stemma.text.ngrams import normalized_words

SAMPLE = 20_000  # characters used of a text
MIN_CONFIDENCE = 0.08  # minimum fraction of function words for a Latin-script language
SCRIPTS = {
    "latin": "A-Za-z\u00c0-\u024f\u1e00-\u1eff", "cyrillic": "\u0400-\u052f", "greek": "\u0370-\u03ff",
    "hebrew": "\u0590-\u05ff", "arabic": "\u0600-\u06ff", "devanagari": "\u0900-\u097f", "thai": "\u0e00-\u0e7f",
    "kana": "\u3040-\u30ff", "han": "\u3400-\u9fff\uf900-\ufaff", "hangul": "\uac00-\ud7af",
}  # fmt: skip
LETTERS = {name: re.compile(f"[{characters}]") for name, characters in SCRIPTS.items()}
BY_SCRIPT = {"greek": "el", "hebrew": "he", "arabic": "ar", "devanagari": "hi", "thai": "th", "han": "zh",
             "kana": "ja", "hangul": "ko"}
UKRAINIAN = re.compile("[іїєґІЇЄҐ]")
WEIGHT = {"han": 2.5, "kana": 1.5, "hangul": 2.0}  # letters that one such character counts for
FUNCTION_WORDS = {
    "en": "the of and to a in is that it was for on with he as are his they be at this have from or had by but not "
          "what all were we when your can said there an which she do their if will up about out who them these some "
          "her would make like him has two through its while my you i into near behind down other one more after than",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er "
          "hat dass sie nach wird bei einer um sind noch wie einem über einen zum haben nur oder aber vor "
          "zur bis mehr durch sein wurde ich wir eines ihr seine während",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont avec son "
          "aux d l qu mais on ou leur cette nous ses comme été deux même sa elle tout fait être c je vous ils ces",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me sin "
          "sobre este ya entre cuando todo esta ser son dos también fue había era muy años hasta desde está mi porque",
    "it": "di e il la che in a per un è del non una i le si con da al dei come sono alla anche più ha nel della gli "
          "lo ma se delle su dal o questo nella ai degli loro essere stato due era tra ci mi dalla sul cui",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu "
          "sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem mesmo",
    "nl": "de van een het en in is dat op te zijn met die voor niet aan er om ook als dan maar bij uit nog naar "
          "heeft hij worden door wordt ze zich hebben deze kan tot werd meer geen dit wel ik je wij haar",
    "sv": "och i att en det som på är av för den med till inte om ett han var jag sig från vi så kan när år ska "
          "eller de har hade under efter vid mot också detta blev mycket sin alla mellan denna hon ut upp",
    "pl": "w i na z się nie do to że jest o od po za jak przez co dla tak ale czy ma był już może są było jego "
          "jej tym przy tylko który która które ze także ich aby lub oraz bardzo gdy jednak",
    "tr": "ve bir bu da de için ile çok olarak daha gibi o en ne kadar sonra olan var ama mi mı ben her değil veya "
          "şey diye iki ki bunu göre olduğu tarafından ise kendi şu zaman",
}  # fmt: skip
LANGUAGES = sorted({*FUNCTION_WORDS, *BY_SCRIPT.values(), "ru", "uk"})


def _word_weights() -> dict[str, dict[str, float]]:
    """Word -> language -> weight; the weights of a word sum to one."""
    languages_by_word: dict[str, list[str]] = {}
    for language, words in FUNCTION_WORDS.items():
        for word in dict.fromkeys(words.split()):
            languages_by_word.setdefault(word, []).append(language)
    return {word: dict.fromkeys(languages, 1 / len(languages)) for word, languages in languages_by_word.items()}


WORD_WEIGHTS = _word_weights()


def identify(text: str) -> str | None:
    """Two-letter code of the language; None if there is too little evidence."""
    sample = text[:SAMPLE]
    counts = {name: len(pattern.findall(sample)) * WEIGHT.get(name, 1.0) for name, pattern in LETTERS.items()}
    script = max(counts, key=lambda name: counts[name])
    if not counts[script]:
        return None
    if counts["kana"] and script in ("han", "kana"):  # Japanese writes its content words in Chinese characters
        return "ja" if 5 * counts["kana"] > counts["han"] else "zh"
    if script == "cyrillic":
        return "uk" if UKRAINIAN.search(sample) and not re.search("[ыэъЫЭЪ]", sample) else "ru"
    if script != "latin":
        return BY_SCRIPT[script]
    words = normalized_words(sample)
    scores: dict[str, float] = {}
    for word, count in Counter(words).items():
        for language, weight in WORD_WEIGHTS.get(word, {}).items():
            scores[language] = scores.get(language, 0.0) + count * weight
    best = max(scores.values(), default=0.0)
    winners = [language for language, score in scores.items() if score == best]
    return winners[0] if len(winners) == 1 and best >= MIN_CONFIDENCE * len(words) else None
