package io.edgealbert.tokenizer

/** "▁" in UTF-8, SentencePiece's space. */
internal val SPACE_SYMBOL = byteArrayOf(0xE2.toByte(), 0x96.toByte(), 0x81.toByte())

/** Bytes of the character that begins with [lead], in well-formed UTF-8. */
internal fun utf8Length(lead: Byte): Int = when {
    lead >= 0 -> 1
    lead < 0xE0.toByte() -> 2
    lead < 0xF0.toByte() -> 3
    else -> 4
}

/** Whether a "▁" stands at bytes[at], before [end]. */
internal fun startsWithSpaceSymbol(bytes: ByteArray, at: Int, end: Int): Boolean =
    end - at >= SPACE_SYMBOL.size && SPACE_SYMBOL.indices.all { bytes[at + it] == SPACE_SYMBOL[it] }

/**
 * Characters [from, to) of a cleaned text in UTF-8. [characters] says for each byte which of them it
 * belongs to, and at the end how far they go.
 */
internal class Utf8Block(text: CleanText, from: Int, to: Int) {
    val bytes: ByteArray
    val characters: IntArray

    init {
        var size = 0
        for (i in from until to) size += width(text.codes[i])
        bytes = ByteArray(size)
        characters = IntArray(size + 1)
        var at = 0
        for (i in from until to) {
            val start = at
            at = encode(text.codes[i], at)
            characters.fill(i, start, at)
        }
        characters[size] = to
    }

    private fun encode(code: Int, start: Int): Int {
        val width = width(code)
        if (width == 1) {
            bytes[start] = code.toByte()
            return start + 1
        }
        var rest = code
        for (at in start + width - 1 downTo start + 1) {
            bytes[at] = (rest and 0x3F or 0x80).toByte()
            rest = rest ushr 6
        }
        bytes[start] = (LEADS[width] or rest).toByte()
        return start + width
    }

    private companion object {
        val LEADS = intArrayOf(0, 0, 0xC0, 0xE0, 0xF0)

        fun width(code: Int): Int = when {
            code < 0x80 -> 1
            code < 0x800 -> 2
            code < 0x10000 -> 3
            else -> 4
        }
    }
}

/**
 * A normalised block: bytes[0, size) in UTF-8; byte i comes from the cleaned text's character
 * origins[i], and origins[size] is where the block ends there.
 */
internal class Normalized(val bytes: ByteArray, val size: Int, val origins: IntArray) {
    class Builder(expected: Int) {
        private var bytes = ByteArray(expected + expected / 2 + 8)
        private var origins = IntArray(bytes.size + 1)
        private var size = 0

        fun add(byte: Byte, origin: Int) {
            if (size == bytes.size) {
                bytes = bytes.copyOf(2 * size)
                origins = origins.copyOf(2 * size + 1)
            }
            bytes[size] = byte
            origins[size++] = origin
        }

        fun addSpace(origin: Int) {
            for (byte in SPACE_SYMBOL) add(byte, origin)
        }

        /** Drops "▁" at the end; returns where the text now ends in the original, [end] if nothing was. */
        fun trimSpaces(end: Int): Int {
            var result = end
            while (size >= SPACE_SYMBOL.size &&
                startsWithSpaceSymbol(bytes, size - SPACE_SYMBOL.size, size)
            ) {
                size -= SPACE_SYMBOL.size
                result = origins[size]
            }
            return result
        }

        fun build(end: Int): Normalized {
            origins[size] = end
            return Normalized(bytes, size, origins)
        }
    }

    companion object {
        val EMPTY = Normalized(ByteArray(0), 0, intArrayOf(0))
    }
}
