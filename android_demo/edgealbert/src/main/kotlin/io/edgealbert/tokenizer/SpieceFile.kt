package io.edgealbert.tokenizer

import io.edgealbert.TokenizerException

/**
 * What a spiece.model says: a protobuf ModelProto (sentencepiece_model.proto), of which the fields
 * that decide a unigram segmentation are read.
 */
internal class SpieceFile private constructor(
    /** Each piece in UTF-8, by id. */
    val pieces: List<ByteArray>,
    val scores: FloatArray,
    val types: IntArray,
    /** The compiled nmt_nfkc (or other) rules: a trie and what its entries become; may be empty. */
    val charsMap: ByteArray,
    val addDummyPrefix: Boolean,
    val removeExtraWhitespaces: Boolean
) {
    val unknownId: Int = types.indexOf(UNKNOWN)

    private class Builder {
        val pieces = ArrayList<ByteArray>()
        val scores = ArrayList<Float>()
        val types = ArrayList<Int>()
        var modelType = UNIGRAM
        var byteFallback = false
        var spaceAsSuffix = false
        var charsMap = ByteArray(0)
        var addDummyPrefix = true
        var removeExtraWhitespaces = true
        var escapeWhitespaces = true

        fun readModel(reader: BinaryReader) = reader.fields { field, type ->
            when (field) {
                1 -> readPiece(reader.message())
                2 -> readTrainer(reader.message())
                3 -> readNormalizer(reader.message())
                else -> reader.skipField(type)
            }
        }

        private fun readPiece(reader: BinaryReader) {
            var piece = ByteArray(0)
            var score = 0f
            var kind = NORMAL
            reader.fields { field, type ->
                when (field) {
                    1 -> piece = reader.bytes()
                    2 -> score = reader.float()
                    3 -> kind = reader.varint()
                    else -> reader.skipField(type)
                }
            }
            if (piece.isEmpty() || score.isNaN() || score.isInfinite()) {
                throw DamagedException("piece ${pieces.size} is empty or has no score")
            }
            pieces.add(piece)
            scores.add(score)
            types.add(kind)
        }

        private fun readTrainer(reader: BinaryReader) = reader.fields { field, type ->
            when (field) {
                3 -> modelType = reader.varint()
                24 -> spaceAsSuffix = reader.varint() != 0
                35 -> byteFallback = reader.varint() != 0
                else -> reader.skipField(type)
            }
        }

        private fun readNormalizer(reader: BinaryReader) = reader.fields { field, type ->
            when (field) {
                2 -> charsMap = reader.bytes()
                3 -> addDummyPrefix = reader.varint() != 0
                4 -> removeExtraWhitespaces = reader.varint() != 0
                5 -> escapeWhitespaces = reader.varint() != 0
                else -> reader.skipField(type)
            }
        }

        private inline fun BinaryReader.fields(read: (field: Int, type: Int) -> Unit) {
            while (hasMore()) {
                val tag = varint()
                read(tag ushr 3, tag and 7)
            }
        }
    }

    companion object {
        const val NORMAL = 1
        const val UNKNOWN = 2
        const val USER_DEFINED = 4
        const val UNUSED = 5
        private const val UNIGRAM = 1

        /** Throws [TokenizerException] for a file that is damaged or not of ALBERT's kind. */
        fun parse(bytes: ByteArray, source: String): SpieceFile {
            val builder = Builder()
            try {
                builder.readModel(BinaryReader(bytes))
                if (UNKNOWN !in builder.types) throw DamagedException("no unknown piece")
            } catch (error: DamagedException) {
                throw TokenizerException(
                    "$source: not a SentencePiece model (${error.message}): fetch the file again",
                    error
                )
            }
            val foreign = builder.run {
                modelType != UNIGRAM || byteFallback || spaceAsSuffix || !escapeWhitespaces
            }
            if (foreign) {
                throw TokenizerException(
                    "$source: not a unigram model as ALBERT's: this is another model's tokenizer"
                )
            }
            return SpieceFile(
                builder.pieces,
                builder.scores.toFloatArray(),
                builder.types.toIntArray(),
                builder.charsMap,
                builder.addDummyPrefix,
                builder.removeExtraWhitespaces
            )
        }
    }
}
