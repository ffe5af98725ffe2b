package io.edgealbert.tokenizer

/** A binary file that ends too early or says what cannot be; never leaves this package. */
internal class DamagedException(message: String) : Exception(message)

/** Reads LEB128 numbers, fixed ones and bytes; a protobuf message or the exporter's table. */
internal class BinaryReader(
    private val bytes: ByteArray,
    private var at: Int = 0,
    private val end: Int = bytes.size
) {
    fun hasMore(): Boolean = at < end

    /** An unsigned number below 2^31; protobuf's negative enums and larger numbers are damage here. */
    fun varint(): Int {
        val value = varint64()
        if (value < 0 || value > Int.MAX_VALUE) throw DamagedException("number out of range")
        return value.toInt()
    }

    /** A number of things that take a byte at least each. */
    fun count(): Int {
        val value = varint()
        if (value > end - at) throw DamagedException("ends too early")
        return value
    }

    fun take(length: Int): ByteArray {
        val start = skip(length)
        return bytes.copyOfRange(start, start + length)
    }

    fun float(): Float {
        val start = skip(Float.SIZE_BYTES)
        return Float.fromBits(littleEndian(bytes, start))
    }

    /** A length-prefixed part, as a copy. */
    fun bytes(): ByteArray = take(count())

    /** A length-prefixed part, read in place. */
    fun message(): BinaryReader {
        val length = count()
        val start = skip(length)
        return BinaryReader(bytes, start, start + length)
    }

    /** Steps over a protobuf field of the given wire type. */
    fun skipField(wireType: Int) {
        when (wireType) {
            VARINT -> varint64()
            FIXED64 -> skip(Long.SIZE_BYTES)
            BYTES -> skip(count())
            FIXED32 -> skip(Int.SIZE_BYTES)
            else -> throw DamagedException("wire type $wireType")
        }
    }

    private fun varint64(): Long {
        var value = 0L
        var shift = 0
        while (shift < Long.SIZE_BITS) {
            val byte = bytes[skip(1)].toInt()
            value = value or ((byte and 0x7F).toLong() shl shift)
            if (byte >= 0) return value
            shift += 7
        }
        throw DamagedException("number too long")
    }

    private fun skip(count: Int): Int {
        if (count < 0 || count > end - at) throw DamagedException("ends too early")
        at += count
        return at - count
    }

    companion object {
        const val VARINT = 0
        const val FIXED64 = 1
        const val BYTES = 2
        const val FIXED32 = 5

        fun littleEndian(bytes: ByteArray, at: Int): Int = (bytes[at].toInt() and 0xFF) or
            (bytes[at + 1].toInt() and 0xFF shl 8) or
            (bytes[at + 2].toInt() and 0xFF shl 16) or
            (bytes[at + 3].toInt() shl 24)
    }
}

/** A growing array of numbers. */
internal class IntList(capacity: Int = 16) {
    private var values = IntArray(capacity)
    var size = 0
        private set

    operator fun set(index: Int, value: Int) {
        values[index] = value
    }

    fun add(value: Int) {
        if (size == values.size) values = values.copyOf(size * 2 + 1)
        values[size++] = value
    }

    fun truncate(length: Int) {
        size = length
    }

    fun toArray(): IntArray = values.copyOf(size)
}
