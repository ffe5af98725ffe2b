package io.edgealbert.tokenizer

/**
 * Byte strings ► numbers, walked byte by byte: a trie whose edges stand in one open-addressing hash
 * table, which is built in one pass and takes two ints an edge.
 */
internal class ByteTrie(keys: List<ByteArray>, numbers: IntArray) {
    private val capacityBits: Int
    private val edges: IntArray // (node shl 8 or byte) + 1, 0 for an empty slot
    private val targets: IntArray
    private val values: IntArray

    init {
        val most = keys.sumOf { it.size } + 1
        capacityBits = Int.SIZE_BITS - Integer.numberOfLeadingZeros(2 * most)
        edges = IntArray(1 shl capacityBits)
        targets = IntArray(1 shl capacityBits)
        val found = IntList(most)
        found.add(NONE)
        keys.forEachIndexed { i, key ->
            var node = ROOT
            for (byte in key) {
                val edge = edge(node, byte)
                val slot = slot(edge)
                if (edges[slot] == 0) {
                    edges[slot] = edge
                    targets[slot] = found.size
                    found.add(NONE)
                }
                node = targets[slot]
            }
            found[node] = numbers[i]
        }
        values = found.toArray()
    }

    /** The node that [byte] leads to, or [NONE]. */
    fun step(node: Int, byte: Byte): Int {
        val slot = slot(edge(node, byte))
        return if (edges[slot] == 0) NONE else targets[slot]
    }

    /** The number of the string that ends at [node], or [NONE]. */
    fun value(node: Int): Int = values[node]

    /** The number of bytes[start, end), or [NONE]. */
    fun find(bytes: ByteArray, start: Int, end: Int): Int {
        var node = ROOT
        for (i in start until end) {
            node = step(node, bytes[i])
            if (node == NONE) return NONE
        }
        return value(node)
    }

    private fun edge(node: Int, byte: Byte): Int = (node shl 8 or (byte.toInt() and 0xFF)) + 1

    /** Where [edge] stands, or the empty slot where it would. */
    private fun slot(edge: Int): Int {
        val mask = edges.size - 1
        var slot = edge * GOLDEN ushr (Int.SIZE_BITS - capacityBits)
        while (edges[slot] != edge && edges[slot] != 0) slot = slot + 1 and mask
        return slot
    }

    companion object {
        const val ROOT = 0
        const val NONE = -1
        private const val GOLDEN = -1640531527 // 2^32 over the golden ratio: Fibonacci hashing
    }
}
