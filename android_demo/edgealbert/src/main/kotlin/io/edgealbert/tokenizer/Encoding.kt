package io.edgealbert.tokenizer

/**
 * One input of the model, not padded; every array has one entry per token.
 *
 * The same fields as in edge_albert/tokenization/pieces.py, but offsets count UTF-16 units, as
 * Kotlin's strings do: `text.substring(starts[i], ends[i])` is what token i stands for.
 */
class Encoding internal constructor(
    /** Vocabulary ids, [CLS] and [SEP] included. */
    val inputIds: IntArray,
    /** 0 for [CLS], the first text and its [SEP]; 1 for the second text and its [SEP]. */
    val tokenTypeIds: IntArray,
    /** Where in its text a token begins; 0 for an added token. */
    val starts: IntArray,
    /** Where in its text a token ends; 0 for an added token. */
    val ends: IntArray,
    /** 0 or 1: which text; [ADDED] for [CLS] and [SEP]. */
    val sequenceIds: IntArray
) {
    val size: Int get() = inputIds.size

    companion object {
        const val ADDED = -1

        /** [CLS] first [SEP], or [CLS] first [SEP] second [SEP]: BERT's and ALBERT's template. */
        internal fun build(first: Pieces, second: Pieces?, clsId: Int, sepId: Int): Encoding {
            val parts = listOfNotNull(first, second)
            val size = 1 + parts.sumOf { it.size + 1 }
            val encoding = Encoding(
                IntArray(size),
                IntArray(size),
                IntArray(size),
                IntArray(size),
                IntArray(size) { ADDED }
            )
            encoding.inputIds[0] = clsId
            var at = 1
            parts.forEachIndexed { number, pieces ->
                pieces.ids.copyInto(encoding.inputIds, at)
                pieces.starts.copyInto(encoding.starts, at)
                pieces.ends.copyInto(encoding.ends, at)
                encoding.sequenceIds.fill(number, at, at + pieces.size)
                encoding.tokenTypeIds.fill(number, at, at + pieces.size + 1)
                at += pieces.size
                encoding.inputIds[at++] = sepId
            }
            return encoding
        }
    }
}

/** A text as vocabulary ids: piece i stands for text[starts[i], ends[i]). */
internal class Pieces(val ids: IntArray, val starts: IntArray, val ends: IntArray) {
    val size: Int get() = ids.size

    fun slice(from: Int, to: Int): Pieces = if (from == 0 && to == size) {
        this
    } else {
        Pieces(ids.copyOfRange(from, to), starts.copyOfRange(from, to), ends.copyOfRange(from, to))
    }
}
