package io.edgealbert.tasks

import org.junit.Assert.assertEquals
import org.junit.Test

/** The cases of tests/test_entity_metrics.py. */
class TaggedWordsTest {
    private fun found(tags: String) = taggedWords(tags.split(" ")).map { Triple(it.first, it.last, it.kind) }

    @Test
    fun prefixes() {
        assertEquals(listOf(Triple(0, 1, "PER"), Triple(3, 3, "LOC")), found("B-PER I-PER O B-LOC"))
        assertEquals(listOf(Triple(0, 0, "PER"), Triple(1, 1, "PER")), found("B-PER B-PER"))
        assertEquals(listOf(Triple(0, 1, "PER"), Triple(2, 2, "LOC")), found("I-PER I-PER I-LOC"))
        assertEquals(
            listOf(Triple(0, 0, "PER"), Triple(1, 1, "PER"), Triple(2, 4, "LOC"), Triple(5, 5, "LOC")),
            found("S-PER E-PER B-LOC I-LOC E-LOC I-LOC")
        )
        assertEquals(listOf(Triple(0, 1, "A-B")), found("B-A-B I-A-B"))
    }

    @Test
    fun labelsWithoutPrefixes() {
        assertEquals(
            listOf(Triple(0, 1, "ORG"), Triple(3, 3, "ORG"), Triple(4, 4, "DATE")),
            found("ORG ORG O ORG DATE")
        )
        assertEquals(emptyList<Any>(), found("O O"))
    }
}
