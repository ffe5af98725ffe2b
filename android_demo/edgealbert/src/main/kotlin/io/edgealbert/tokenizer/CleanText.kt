package io.edgealbert.tokenizer

/**
 * A text after ALBERT's own rules, and where each of its characters comes from.
 *
 * The rules, as edge_albert/tokenization/text_rules.py has them: whitespace collapsed, `` and '' as ",
 * then each character by the table (NFKD without combining marks, lower case). [codes] are code
 * points; character k stands for original[starts[k], ends[k]), in UTF-16 units. Dropped characters belong to
 * the character before them.
 */
internal class CleanText(val codes: IntArray, private val starts: IntArray, private val ends: IntArray) {
    val size: Int get() = codes.size

    /** Where character [index] begins; where the last one ended, for [index] = [size]. */
    fun start(index: Int): Int = when {
        index < size -> starts[index]
        size > 0 -> ends[size - 1]
        else -> 0
    }

    fun end(index: Int): Int = ends[index]
}

/** Cleans one text in one pass; made anew for each. */
internal class TextCleaner(
    private val text: String,
    private val rules: CharacterRules,
    private val removeSpace: Boolean
) {
    private val codes = IntList(text.length)
    private val starts = IntList(text.length)
    private val ends = IntList(text.length)
    private val out = IntArray(CharacterRules.MAX_LENGTH)
    private var wordSeen = false
    private var beforeSpace = NONE // length of the result before the run of whitespace at hand

    fun clean(): CleanText {
        var at = 0
        while (at < text.length) {
            val code = codePoint(at)
            at += when {
                removeSpace && rules.isSpace(code) -> space(at)
                isPairedQuote(at) -> emit(at, '"'.code).let { 2 }
                else -> emit(at, code).let { Character.charCount(code) }
            }
        }
        if (beforeSpace != NONE) truncate(beforeSpace)
        closeOpen(text.length)
        return CleanText(codes.toArray(), starts.toArray(), ends.toArray())
    }

    /** Lone surrogates have no UTF-8 form; they count as U+FFFD. */
    private fun codePoint(at: Int): Int {
        val code = text.codePointAt(at)
        return if (code in SURROGATES) REPLACEMENT else code
    }

    private fun isPairedQuote(at: Int): Boolean {
        val char = text[at]
        return (char == '`' || char == '\'') && at + 1 < text.length && text[at + 1] == char
    }

    /** The first of a run of whitespace between words becomes a space. */
    private fun space(at: Int): Int {
        closeOpen(at)
        if (wordSeen && beforeSpace == NONE) {
            beforeSpace = codes.size
            add(at, ' '.code)
        }
        return 1
    }

    private fun emit(at: Int, code: Int) {
        wordSeen = true
        beforeSpace = NONE
        val count = rules.replace(code, out)
        if (count > 0 || rules.isSpace(code)) closeOpen(at)
        for (i in 0 until count) add(at, out[i])
    }

    private fun add(at: Int, code: Int) {
        codes.add(code)
        starts.add(at)
    }

    /** What was emitted last ends where the next character that counts begins. */
    private fun closeOpen(at: Int) {
        while (ends.size < codes.size) ends.add(at)
    }

    private fun truncate(length: Int) {
        codes.truncate(length)
        starts.truncate(length)
        ends.truncate(minOf(length, ends.size))
    }

    private companion object {
        const val NONE = -1
        const val REPLACEMENT = 0xFFFD
        val SURROGATES = 0xD800..0xDFFF
    }
}
