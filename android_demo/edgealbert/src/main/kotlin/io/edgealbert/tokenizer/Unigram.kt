package io.edgealbert.tokenizer

/**
 * The best segmentation under a unigram model, as `EncodeOptimized` in SentencePiece 0.2.3 finds it.
 *
 * Exactly as there: scores are added in float32 from the left, of two equally good ways into a place
 * the one found first (the longer last piece) stays, and running scores beyond ±100,000 are set back,
 * so that ties and near-ties fall the same way. Other versions of SentencePiece differ here.
 */
internal class Unigram(private val file: SpieceFile) {
    private val trie: ByteTrie
    private val unknownScore: Float

    init {
        val ids = file.types.indices.filter { file.types[it] in SEARCHED }
        trie = ByteTrie(ids.map { file.pieces[it] }, ids.toIntArray())
        var lowest = Float.MAX_VALUE
        for (id in ids) {
            if (file.types[id] == SpieceFile.NORMAL) lowest = minOf(lowest, file.scores[id])
        }
        unknownScore = lowest - UNKNOWN_PENALTY
    }

    /** The id of exactly bytes[start, end) among the pieces a text can hold, or [ByteTrie.NONE]. */
    fun find(bytes: ByteArray, start: Int, end: Int): Int = trie.find(bytes, start, end)

    /** Ids and stops (in bytes) of the best pieces; a run of unknown characters is one piece. */
    fun segment(text: Normalized): Segments {
        val lattice = Lattice(text)
        lattice.search()
        return lattice.best()
    }

    /** The best way into each place of one text. */
    private inner class Lattice(private val text: Normalized) {
        private val bytes = text.bytes
        private val size = text.size
        private val scores = FloatArray(size + 1)
        private val starts = IntArray(size + 1)
        private val ids = IntArray(size + 1)
        private var frontier = 0

        fun search() {
            starts.fill(NOT_REACHED)
            var at = 0
            while (at < size) {
                keepInRange(at)
                val width = minOf(utf8Length(bytes[at]), size - at)
                if (!extend(at, width)) reach(at, at + width, unknownScore, file.unknownId)
                at += width
            }
        }

        /** Tries every piece that begins at [at]; whether one of them is a single character. */
        private fun extend(at: Int, width: Int): Boolean {
            var single = false
            var node = ByteTrie.ROOT
            var stop = at
            while (stop < size) {
                node = trie.step(node, bytes[stop++])
                if (node == ByteTrie.NONE) break
                val id = trie.value(node)
                if (id != ByteTrie.NONE && file.types[id] != SpieceFile.UNUSED) {
                    reach(at, stop, score(id, stop - at), id)
                    if (stop - at == width) single = true
                }
            }
            return single
        }

        private fun score(id: Int, length: Int): Float = if (file.types[id] == SpieceFile.USER_DEFINED) {
            (USER_DEFINED_BONUS * (length - 1)).toFloat()
        } else {
            file.scores[id]
        }

        private fun reach(start: Int, stop: Int, score: Float, id: Int) {
            frontier = maxOf(frontier, stop)
            val sum = score + scores[start]
            if (starts[stop] == NOT_REACHED || sum > scores[stop]) {
                scores[stop] = sum
                starts[stop] = start
                ids[stop] = id
            }
        }

        /** Sets the running scores back before float32 grows too coarse for the differences. */
        private fun keepInRange(at: Int) {
            val offset = scores[at]
            if (offset in -RESET_BEYOND..RESET_BEYOND) return
            for (i in at..frontier) {
                if (i == at || starts[i] != NOT_REACHED) scores[i] -= offset
            }
        }

        fun best(): Segments {
            var count = 0
            var at = size
            while (at > 0) {
                count++
                at = starts[at]
            }
            val found = Segments(IntArray(count), IntArray(count))
            at = size
            for (i in count - 1 downTo 0) {
                found.ids[i] = ids[at]
                found.stops[i] = at
                at = starts[at]
            }
            return found.mergeRuns(file.unknownId)
        }
    }

    private companion object {
        val SEARCHED = setOf(SpieceFile.NORMAL, SpieceFile.USER_DEFINED, SpieceFile.UNUSED)
        const val UNKNOWN_PENALTY = 10f
        const val USER_DEFINED_BONUS = 0.1
        const val RESET_BEYOND = 100_000f
        const val NOT_REACHED = -1
    }
}

/** Piece i is [ids] i and ends at byte [stops] i; the first begins at 0. */
internal class Segments(val ids: IntArray, val stops: IntArray) {
    val size: Int get() = ids.size

    /** The same with each run of pieces [id] as one. */
    fun mergeRuns(id: Int): Segments {
        val kept = ids.indices.filter { it == ids.lastIndex || ids[it] != id || ids[it + 1] != id }
        if (kept.size == ids.size) return this
        return Segments(IntArray(kept.size) { ids[kept[it]] }, IntArray(kept.size) { stops[kept[it]] })
    }
}
