package io.edgealbert.tasks

import io.edgealbert.Session
import io.edgealbert.tokenizer.Encoding

/** A labelled stretch: text.substring(start, end), and the mean probability over its words. */
data class Entity(val label: String, val text: String, val start: Int, val end: Int, val score: Double)

/**
 * Labelled stretches of a text of any length: bundles of the task token-classification.
 *
 * As edge_albert/runtime/spans.py: a word takes the label of its first piece, and labels may be
 * BIO, IOBES or plain (TaggedWords.kt).
 */
class TokenClassifier(private val session: Session) {
    private class Piece(val start: Int, val end: Int, var scores: DoubleArray, var margin: Int)

    private class Word(val start: Int, val end: Int, val label: String, val score: Double)

    init {
        session.checkTask("token-classification")
    }

    /** Longer texts than the model takes are read in windows that share [stride] tokens. */
    fun entities(text: String, stride: Int = session.defaultStride): List<Entity> {
        session.checkText(text, "text")
        val windows = session.tokenizer.encodeWindows(text, null, session.maxLength, stride)
        val pieces = ArrayList<Piece>()
        var at = 0
        for (window in windows) at += stitch(pieces, at, window, session.run(window)) - stride
        return join(text, words(text, pieces))
    }

    /**
     * Adds one window's pieces from place [at] on; one that is there already is taken where it
     * stands farther from an edge. Returns how many the window has.
     */
    private fun stitch(pieces: MutableList<Piece>, at: Int, window: Encoding, logits: FloatArray): Int {
        val classes = session.bundle.labels.size
        val tokens = window.sequenceIds.indices.filter { window.sequenceIds[it] == 0 }
        tokens.forEachIndexed { k, token ->
            val scores = softmax(logits, token * classes, (token + 1) * classes)
            val margin = minOf(k, tokens.lastIndex - k)
            if (at + k == pieces.size) {
                pieces.add(Piece(window.starts[token], window.ends[token], scores, margin))
            } else if (margin > pieces[at + k].margin) {
                pieces[at + k].scores = scores
                pieces[at + k].margin = margin
            }
        }
        return tokens.size
    }

    private fun words(text: String, pieces: List<Piece>): List<Word> {
        val groups = ArrayList<MutableList<Piece>>()
        for (piece in pieces) {
            val before = groups.lastOrNull()?.last()
            if (before != null && continues(text, before, piece)) {
                groups.last().add(piece)
            } else {
                groups.add(mutableListOf(piece))
            }
        }
        return groups.mapNotNull { group -> word(text, group) }
    }

    /** The word of one group of pieces; null when none of them is visible. */
    private fun word(text: String, group: List<Piece>): Word? {
        val visible = group.filterNot { session.isBlank(text, it.start, it.end) }
        if (visible.isEmpty()) return null
        val scores = group.first().scores
        val best = scores.indices.maxByOrNull { scores[it] } ?: return null
        val label = session.bundle.labels[best]
        return Word(visible.first().start, visible.last().end, label, scores[best])
    }

    /** Whether two neighbouring pieces belong to one word: they touch, and letters or digits meet. */
    private fun continues(text: String, before: Piece, here: Piece): Boolean = when {
        session.isBlank(text, before.start, before.end) -> true

        // a lone word boundary
        here.start < before.end -> true

        // two pieces of one character, such as "ﬁ"
        here.start > before.end || here.start >= text.length -> false

        else -> isAlphanumeric(text.codePointBefore(before.end)) &&
            isAlphanumeric(text.codePointAt(here.start))
    }

    private fun join(text: String, words: List<Word>): List<Entity> =
        taggedWords(words.map { it.label }).map { (first, last, kind) ->
            val start = words[first].start
            val end = words[last].end
            val score = words.subList(first, last + 1).map { it.score }.average()
            Entity(kind, text.substring(start, end), start, end, score)
        }

    private companion object {
        val NUMBERS = setOf(
            Character.DECIMAL_DIGIT_NUMBER.toInt(),
            Character.LETTER_NUMBER.toInt(),
            Character.OTHER_NUMBER.toInt()
        )

        /** As Python's str.isalnum(). */
        fun isAlphanumeric(code: Int): Boolean =
            Character.isLetter(code) || Character.getType(code) in NUMBERS
    }
}
