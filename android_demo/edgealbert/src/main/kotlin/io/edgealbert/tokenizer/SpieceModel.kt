package io.edgealbert.tokenizer

/**
 * SentencePiece with ALBERT's rules: text ► pieces of a spiece.model, each with its place in the
 * original text. The twin of edge_albert/tokenization/spiece.py, which says what the reference is and
 * why long texts are cut into blocks.
 */
internal class SpieceModel(
    file: SpieceFile,
    val rules: CharacterRules,
    private val removeSpace: Boolean,
    specialIds: Set<Int>
) {
    /** Number of pieces, special ones included. */
    val size: Int = file.pieces.size
    private val unigram = Unigram(file)
    private val unknownId = file.unknownId
    private val normalizer: Normalizer
    private val givenIds: BooleanArray // by id: an ordinary piece, which a text may become
    private val separable: Boolean

    init {
        val userDefined = file.types.indices.filter { file.types[it] == SpieceFile.USER_DEFINED }
        val trie = ByteTrie(userDefined.map { file.pieces[it] }, userDefined.toIntArray())
        normalizer = Normalizer(file, if (userDefined.isEmpty()) null else trie)
        givenIds = BooleanArray(file.types.size) {
            file.types[it] in ORDINARY && it !in specialIds
        }
        separable = wordsAreSeparable(file)
    }

    /** Ids and places in [text], without special tokens. Lone surrogates count as U+FFFD. */
    fun split(text: String): Pieces {
        val clean = TextCleaner(text, rules, removeSpace).clean()
        val out = PieceList(text.length / 4 + 4)
        var from = 0
        while (true) {
            val to = blockEnd(clean, from)
            Block(clean, normalizer.normalize(clean, from, to), out).split()
            if (to == clean.size) return out.toPieces()
            from = to
        }
    }

    /** Where the block that begins at [from] ends: at a space, or at the end of the text. */
    private fun blockEnd(clean: CleanText, from: Int): Int {
        val latest = from + BLOCK_LENGTH
        if (!separable || clean.size <= latest) return clean.size
        for (i in latest - 1 downTo from + 1) if (clean.codes[i] == ' '.code) return i
        for (i in latest until clean.size) if (clean.codes[i] == ' '.code) return i
        return clean.size
    }

    /** One block between its text, [clean], and the pieces found, [out]. */
    private inner class Block(
        private val clean: CleanText,
        private val normal: Normalized,
        private val out: PieceList
    ) {
        private val bytes = normal.bytes
        private val origins = normal.origins

        fun split() {
            val found = unigram.segment(normal)
            var start = 0
            for (i in 0 until found.size) {
                val stop = found.stops[i]
                if (endsInDigitAndComma(start, stop)) {
                    splitAgain(start, stop)
                } else {
                    val id = if (givenIds[found.ids[i]]) found.ids[i] else unknownId
                    add(id, start, stop, startsWithSpaceSymbol(bytes, start, stop))
                }
                start = stop
            }
        }

        private fun endsInDigitAndComma(start: Int, stop: Int): Boolean {
            if (bytes[stop - 1] != COMMA || stop - start < 2) return false
            var at = stop - 2
            while (at > start && bytes[at].toInt() and 0xC0 == 0x80) at--
            val before = String(bytes, at, stop - 1 - at, Charsets.UTF_8)
            return rules.isDigit(before.codePointAt(0))
        }

        /** The digit-comma rule of google-research/albert: "▁92000," ► "▁9" "2000" ",". */
        private fun splitAgain(start: Int, stop: Int) {
            val parts = segmentDigits(String(bytes, start, stop - start, Charsets.UTF_8))
            var at = stop - parts.sumOf { it.size } // behind a "▁" that the parts do not give back
            parts.forEachIndexed { i, part ->
                val from = if (i == 0) start else at
                at += part.size
                val id = unigram.find(part, 0, part.size)
                val given = id != ByteTrie.NONE && givenIds[id]
                add(if (given) id else unknownId, from, at, startsWithSpaceSymbol(part, 0, part.size))
            }
        }

        /** A piece's text begins after its "▁"; a lone "▁" is empty, before the character that follows. */
        private fun add(id: Int, from: Int, stop: Int, hasSpace: Boolean) {
            val begin = if (hasSpace) from + SPACE_SYMBOL.size else from
            val start = clean.start(origins[begin])
            if (begin >= stop) {
                out.add(id, start, start)
                return
            }
            val last = origins[stop - 1]
            var next = stop
            while (next < normal.size && origins[next] <= last) next++
            out.add(id, start, clean.end(maxOf(origins[next], last + 1) - 1))
        }
    }

    /** A piece that ends in a digit and a comma, without the comma, and then the comma. */
    private fun segmentDigits(piece: String): List<ByteArray> {
        val codes = piece.dropLast(1).replace(SPACE, "").codePoints().toArray()
        val block = normalizer.normalize(CleanText(codes, codes, codes), 0, codes.size)
        val found = unigram.segment(block)
        val parts = ArrayList<ByteArray>()
        var start = 0
        for (stop in found.stops) {
            parts.add(block.bytes.copyOfRange(start, stop))
            start = stop
        }
        val first = parts.firstOrNull()
        if (!piece.startsWith(SPACE) && first != null && startsWithSpaceSymbol(first, 0, first.size)) {
            parts[0] = first.copyOfRange(SPACE_SYMBOL.size, first.size)
            if (parts[0].isEmpty()) parts.removeAt(0)
        }
        parts.add(byteArrayOf(COMMA))
        return parts
    }

    /** Whether the pieces have "▁" only in front, so that words can be segmented apart. */
    private fun wordsAreSeparable(file: SpieceFile): Boolean {
        val pieces = file.pieces.indices.filter { givenIds[it] }.map { String(file.pieces[it]) }
        val probe = "a  b ".codePoints().toArray()
        val normal = normalizer.normalize(CleanText(probe, probe, probe), 0, probe.size)
        return SPACE in pieces &&
            pieces.none { SPACE in it.drop(1) } &&
            String(normal.bytes, 0, normal.size) == "${SPACE}a${SPACE}b"
    }

    private class PieceList(capacity: Int) {
        private val ids = IntList(capacity)
        private val starts = IntList(capacity)
        private val ends = IntList(capacity)

        fun add(id: Int, start: Int, end: Int) {
            ids.add(id)
            starts.add(start)
            ends.add(end)
        }

        fun toPieces() = Pieces(ids.toArray(), starts.toArray(), ends.toArray())
    }

    private companion object {
        const val BLOCK_LENGTH = 65536 // characters
        const val SPACE = "▁"
        const val COMMA = ','.code.toByte()
        val ORDINARY = setOf(SpieceFile.NORMAL, SpieceFile.USER_DEFINED)
    }
}
