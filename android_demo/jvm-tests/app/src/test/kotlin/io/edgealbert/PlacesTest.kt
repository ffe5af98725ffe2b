package io.edgealbert

import io.edgealbert.tasks.QuestionAnswerer
import io.edgealbert.tasks.TokenClassifier
import org.json.JSONArray
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** Token classification and question answering, against Python's answers from the same tiny models. */
class PlacesTest {
    @get:Rule
    val folder = TemporaryFolder()

    @Test
    fun entitiesArePythons() = session("token-classification").use { session ->
        val classifier = TokenClassifier(session)
        val rows = TestData.objects(TestData.vectors("token-classification") as JSONArray)
        assertTrue(rows.size > 40)
        for (row in rows) {
            val text = row.getString("text")
            val expected = row.getJSONArray("entities").let { List(it.length(), it::getJSONArray) }
            val found = classifier.entities(text, STRIDE)
            assertEquals(text, expected.map { it.getString(1) }, found.map { it.text })
            expected.zip(found).forEach { (wanted, entity) ->
                assertEquals(wanted.getString(0), entity.label)
                assertEquals(text, wanted.getInt(2), text.codePointCount(0, entity.start))
                assertEquals(text, wanted.getInt(3), text.codePointCount(0, entity.end))
                assertEquals(text, wanted.getDouble(4), entity.score, 1e-4)
            }
        }
    }

    @Test
    fun answersArePythons() = session("question-answering").use { session ->
        val answerer = QuestionAnswerer(session)
        val rows = TestData.objects(TestData.vectors("question-answering") as JSONArray)
        assertEquals(20, rows.size)
        for (row in rows) {
            val context = row.getString("context")
            val expected = row.getJSONArray("answer")
            val found = answerer.answer(row.getString("question"), context, stride = STRIDE)
            assertEquals(context, expected.getString(0), found.text)
            assertEquals(expected.getInt(1), context.codePointCount(0, found.start))
            assertEquals(expected.getInt(2), context.codePointCount(0, found.end))
            assertEquals(expected.getDouble(3), found.score, 1e-4)
        }
    }

    @Test
    fun noAnswerWhereTheThresholdAllowsIt() = session("question-answering").use { session ->
        val always = QuestionAnswerer(
            session,
            nullThreshold = -1e9
        ).answer("who?", "nobody knows it", stride = STRIDE)
        assertEquals("", always.text)
        val never = QuestionAnswerer(
            session,
            nullThreshold = 1e9
        ).answer("who?", "nobody knows it", stride = STRIDE)
        assertTrue(never.text.isNotEmpty())
    }

    @Test
    fun aQuestionThatFillsTheModelIsRefused() = session("question-answering").use { session ->
        val question = "why is that so? ".repeat(60)
        val error = assertThrows(InputException::class.java) {
            QuestionAnswerer(session).answer(question, "because", stride = STRIDE)
        }
        assertTrue(error.message, error.message!!.contains("shorten the question"))
    }

    @Test
    fun theOtherTasksModelsAreRefused() = session("question-answering").use { session ->
        assertThrows(BundleException::class.java) { TokenClassifier(session) }
        Unit
    }

    private fun session(task: String) = Session.open(TestData.tinyBundle(folder, task), threads = 1)

    private companion object {
        const val STRIDE = 16
    }
}
