package io.edgealbert

import io.edgealbert.tokenizer.CharacterRules
import io.edgealbert.tokenizer.Encoding
import io.edgealbert.tokenizer.Tokenizer
import java.io.File
import org.json.JSONObject
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

class TokenizerTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val tokenizer by lazy { Tokenizer.open(Bundle.open(TestData.bundle)) }

    @Test
    fun everyTokenAndOffsetIsPythons() {
        val vectors = TestData.vectors("tokenizer") as JSONObject
        val spiece = JSONObject(File(TestData.bundle, Bundle.MANIFEST).readText())
            .getJSONObject("files").getJSONObject("spiece.model").getString("sha256")
        assertEquals("run scripts/make_test_vectors.py", vectors.getString("spiece_sha256"), spiece)
        val lines = vectors.getJSONArray("lines")
        assertTrue(lines.length() >= 500)
        for (i in 0 until lines.length()) {
            val line = lines.getJSONArray(i)
            val text = line.getString(0)
            val pair = if (line.isNull(1)) null else line.getString(1)
            val encoding = tokenizer.encode(text, pair, line.getInt(2))
            val found = TokenizeMain.tokens(encoding, listOf(text, pair.orEmpty()))
            assertEquals("line $i: $text", line.getString(3), found)
        }
    }

    @Test
    fun offsetsArePlacesInTheKotlinString() {
        val text = "Call 😀 ZOË, now"
        val encoding = tokenizer.encode(text)
        val found = (1 until encoding.size - 1).map {
            text.substring(encoding.starts[it], encoding.ends[it])
        }
        assertEquals(text.replace(" ", ""), found.joinToString("").replace(" ", ""))
        assertEquals(
            listOf(tokenizer.clsId, tokenizer.sepId),
            encoding.run {
                listOf(inputIds.first(), inputIds.last())
            }
        )
    }

    @Test
    fun specialTokensInATextAreText() {
        val ids = tokenizer.encode("[SEP] <pad> [MASK] <unk>").run { inputIds.slice(1 until size - 1) }
        assertTrue(ids.none { it in tokenizer.specialIds && it != tokenizer.unknownId })
    }

    @Test
    fun aMegabyteIsTokenizedInPieces() {
        val text = "You have won a prize, call 0800 now! ".repeat(30_000)
        val encoding = tokenizer.encode(text, maxLength = 512)
        assertEquals(512, encoding.size)
        assertEquals(tokenizer.sepId, encoding.inputIds.last())
    }

    @Test
    fun oneWordOfAMegabyte() {
        assertEquals(512, tokenizer.encode("prize".repeat(200_000), maxLength = 512).size)
    }

    @Test
    fun loneSurrogatesAndEmptyTexts() {
        val added = listOf(tokenizer.clsId, tokenizer.sepId)
        assertEquals(added, tokenizer.encode("").inputIds.toList())
        assertEquals(
            tokenizer.encode("a\uFFFDb").inputIds.toList(),
            tokenizer.encode("a\uD83Db").inputIds.toList()
        )
    }

    @Test
    fun windowsShareTheStride() {
        val text = "one two three four five six seven eight nine ten ".repeat(10)
        val all = tokenizer.encode(text)
        val windows = tokenizer.encodeWindows(text, null, maxLength = 40, stride = 10)
        val joined = windows.flatMapIndexed { i, window -> inner(window).drop(if (i == 0) 0 else 10) }
        assertEquals(inner(all), joined)
        assertThrows(TokenizerException::class.java) { tokenizer.encodeWindows(text, null, 12, 10) }
    }

    private fun inner(encoding: Encoding): List<Int> =
        encoding.inputIds.indices.filter { encoding.sequenceIds[it] == 0 }.map { encoding.inputIds[it] }

    @Test
    fun aTableOfAnotherVersionIsRefused() {
        val table = File(TestData.bundle, CharacterRules.FILE).readBytes()
        table[4] = 2
        assertRefused("version 2", table)
    }

    @Test
    fun aDamagedTableIsRefused() {
        val table = File(TestData.bundle, CharacterRules.FILE).readBytes()
        for (size in listOf(0, 3, 8, 100, table.size - 1)) assertRefused("damaged", table.copyOf(size))
        assertRefused("damaged", table + 0)
        assertRefused("damaged", "no table at all".toByteArray())
    }

    @Test
    fun aTableForOtherRulesIsRefused() {
        val table = File(TestData.bundle, CharacterRules.FILE).readBytes()
        table[5] = 0
        assertRefused("made for other rules", table)
    }

    private fun assertRefused(message: String, table: ByteArray) {
        val copy = TestData.copy(folder)
        TestData.replace(copy, CharacterRules.FILE, table)
        val error = assertThrows(TokenizerException::class.java) { Tokenizer.open(Bundle.open(copy)) }
        assertTrue(error.message, error.message!!.contains(message))
        assertTrue(error.message, error.message!!.contains(CharacterRules.FILE))
    }

    @Test
    fun aDamagedVocabularyIsRefused() {
        val spiece = File(TestData.bundle, "spiece.model").readBytes()
        val contents = listOf(
            ByteArray(0),
            "version https://git-lfs.github.com/spec/v1\n".toByteArray(),
            spiece.copyOf(spiece.size / 2),
            spiece.copyOf(spiece.size - 3)
        )
        for (content in contents) {
            val copy = TestData.copy(folder)
            TestData.replace(copy, "spiece.model", content)
            val error = assertThrows(TokenizerException::class.java) { Tokenizer.open(Bundle.open(copy)) }
            assertTrue(error.message, error.message!!.contains("spiece.model"))
        }
    }

    @Test
    fun whatTheRulesSayMustFitTheFile() {
        val changes = listOf<(JSONObject) -> Unit>(
            { it.put("kind", "wordpiece") },
            { it.remove("special_tokens") },
            { it.getJSONObject("special_tokens").getJSONObject("sep").put("id", 0) },
            { it.getJSONObject("special_tokens").getJSONObject("sep").put("id", 1_000_000) },
            { it.getJSONObject("special_tokens").remove("cls") },
            { it.put("file", "vocab.txt") },
            { it.put("do_lower_case", "yes!") }
        )
        for (change in changes) {
            val copy = TestData.copy(folder)
            TestData.edit(copy) { change(it.getJSONObject("tokenizer")) }
            assertThrows(TokenizerException::class.java) { Tokenizer.open(Bundle.open(copy)) }
        }
    }

    @Test
    fun aBundleWithoutTheTableNamesTheRemedy() {
        val copy = TestData.copy(folder)
        TestData.edit(copy) { it.getJSONObject("files").remove(CharacterRules.FILE) }
        val error = assertThrows(TokenizerException::class.java) { Tokenizer.open(Bundle.open(copy)) }
        assertTrue(error.message, error.message!!.contains("--android"))
    }
}
