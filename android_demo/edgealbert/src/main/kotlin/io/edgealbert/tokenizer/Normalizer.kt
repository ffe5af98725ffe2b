package io.edgealbert.tokenizer

/**
 * SentencePiece's normalisation, as its normalizer.cc (0.2.3) does it: the longest entry of the
 * precompiled map at each place, user-defined pieces untouched, spaces as "▁".
 */
internal class Normalizer(private val file: SpieceFile, private val userDefined: ByteTrie?) {
    private val map = if (file.charsMap.isEmpty()) null else CharsMap(file.charsMap)

    /** Normalise characters [from, to) of a cleaned text. */
    fun normalize(text: CleanText, from: Int, to: Int): Normalized =
        if (from == to) Normalized.EMPTY else Run(Utf8Block(text, from, to)).normalize()

    /** One block on its way. [taken] and the [part] are what [next] found at [at]. */
    private inner class Run(private val block: Utf8Block) {
        private val input = block.bytes
        private val out = Normalized.Builder(input.size)
        private var at = 0
        private var taken = 0
        private var part = input
        private var partStart = 0
        private var partEnd = 0

        fun normalize(): Normalized {
            if (file.removeExtraWhitespaces) skipLeadingSpaces()
            if (at == input.size) return Normalized.EMPTY
            if (file.addDummyPrefix) out.addSpace(origin())
            var afterSpace = file.removeExtraWhitespaces
            while (at < input.size) {
                next()
                if (afterSpace) dropSpaces()
                if (partStart < partEnd) {
                    copy()
                    afterSpace = file.removeExtraWhitespaces && part[partEnd - 1] == SPACE
                }
                at += taken
            }
            val end = if (file.removeExtraWhitespaces) out.trimSpaces(origin()) else origin()
            return out.build(end)
        }

        private fun origin(): Int = block.characters[at]

        private fun skipLeadingSpaces() {
            while (at < input.size) {
                next()
                if (partEnd - partStart != 1 || part[partStart] != SPACE) return
                at += taken
            }
        }

        private fun dropSpaces() {
            while (partStart < partEnd && part[partStart] == SPACE) partStart++
        }

        private fun copy() {
            val origin = origin()
            for (i in partStart until partEnd) {
                if (part[i] == SPACE) out.addSpace(origin) else out.add(part[i], origin)
            }
        }

        /** Finds what the characters at [at] become, and how many bytes of them that takes. */
        private fun next() {
            val length = userDefinedLength()
            if (length > 0) {
                take(input, at, at + length, length)
                return
            }
            val found = map?.find(input, at) ?: CharsMap.NOTHING
            if (map != null && found != CharsMap.NOTHING) {
                val start = CharsMap.start(found)
                take(map.strings, start, map.end(start), CharsMap.length(found))
            } else {
                val width = utf8Length(input[at])
                take(input, at, at + width, width)
            }
        }

        private fun take(source: ByteArray, start: Int, end: Int, length: Int) {
            part = source
            partStart = start
            partEnd = end
            taken = length
        }

        private fun userDefinedLength(): Int {
            if (userDefined == null) return 0
            var longest = 0
            var node = ByteTrie.ROOT
            for (i in at until input.size) {
                node = userDefined.step(node, input[i])
                if (node == ByteTrie.NONE) break
                if (userDefined.value(node) != ByteTrie.NONE) longest = i + 1 - at
            }
            return longest
        }
    }

    private companion object {
        const val SPACE = ' '.code.toByte()
    }
}
