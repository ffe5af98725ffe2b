package io.edgealbert.tokenizer

/**
 * SentencePiece's precompiled_charsmap: a Darts double array over UTF-8, and the zero-terminated
 * strings that its values point to.
 *
 * The blob is `uint32 size, size bytes of uint32 units, strings`, all little-endian. A unit's label
 * is its low byte with the top bit, bit 8 says that a value hangs below it, and bits 9 to 30 say how
 * far its children are.
 */
internal class CharsMap(blob: ByteArray) {
    private val units: IntArray

    /** All replacements, each ended by a zero byte. */
    val strings: ByteArray

    init {
        if (blob.size <= HEADER) throw DamagedException("the map of characters is cut off")
        val size = BinaryReader.littleEndian(blob, 0)
        if (size < MIN_SIZE || size % MIN_SIZE != 0 || size >= blob.size - HEADER) {
            throw DamagedException("the map of characters has an impossible size")
        }
        units = IntArray(size / Int.SIZE_BYTES) {
            BinaryReader.littleEndian(blob, HEADER + it * Int.SIZE_BYTES)
        }
        strings = blob.copyOfRange(HEADER + size, blob.size)
        if (strings.last() != 0.toByte() || !isSound()) {
            throw DamagedException("the map of characters is broken")
        }
    }

    /** The longest entry that bytes[at, …) begin with, to be read by [start] and [length]. */
    fun find(bytes: ByteArray, at: Int): Long {
        var found = NOTHING
        var position = offset(units[0])
        for (i in at until bytes.size) {
            val byte = bytes[i].toInt() and 0xFF
            position = position xor byte
            val unit = units[position]
            if (label(unit) != byte) break
            position = position xor offset(unit)
            if (hasLeaf(unit)) found = value(units[position]).toLong() shl Int.SIZE_BITS or (i + 1L - at)
        }
        return found
    }

    /** Where the replacement that begins at [start] ends. */
    fun end(start: Int): Int {
        var at = start
        while (strings[at] != 0.toByte()) at++
        return at
    }

    /** Whether no walk can leave the array, and no value the strings (Darts' own check). */
    private fun isSound(): Boolean {
        val root = units[0]
        if (label(root) != 0 || hasLeaf(root) || offset(root) == 0) return false
        return inside(0) && (1 until units.size).all { i ->
            val unit = units[i]
            when {
                label(unit) < 0 -> value(unit) < strings.size
                !inside(i) -> false
                else -> !hasLeaf(unit) || label(units[i xor offset(unit)]) < 0
            }
        }
    }

    private fun inside(i: Int): Boolean = (i xor offset(units[i]) or 0xFF) in units.indices

    companion object {
        const val NOTHING = -1L
        private const val HEADER = 4
        private const val MIN_SIZE = 1024

        /** Where the replacement of what [CharsMap.find] found begins in the strings. */
        fun start(found: Long): Int = (found ushr Int.SIZE_BITS).toInt()

        /** How many bytes [CharsMap.find] matched. */
        fun length(found: Long): Int = found.toInt()

        /** The byte that leads here; negative for a unit that holds a value. */
        private fun label(unit: Int): Int = unit and (Int.MIN_VALUE or 0xFF)

        private fun hasLeaf(unit: Int): Boolean = unit ushr 8 and 1 == 1

        private fun value(unit: Int): Int = unit and Int.MAX_VALUE

        private fun offset(unit: Int): Int = unit ushr 10 shl (unit and (1 shl 9) ushr 6)
    }
}
