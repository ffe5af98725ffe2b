package io.edgealbert.demo

import android.app.Activity
import android.content.Intent
import android.os.Bundle
import android.widget.Button
import android.widget.EditText
import android.widget.TextView
import io.edgealbert.tasks.Label
import java.util.concurrent.Future
import kotlin.math.roundToInt

/** One screen: a text, a button, the label with its probability, and what that cost. */
class MainActivity : Activity() {
    private val worker get() = (application as DemoApplication).worker
    private lateinit var classify: Button
    private lateinit var answer: TextView
    private lateinit var others: TextView
    private lateinit var details: TextView

    /** The work in flight, for tests to wait on. */
    internal var pending: Future<*>? = null
        private set

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.activity_main)
        classify = findViewById(R.id.classify)
        answer = findViewById(R.id.answer)
        others = findViewById(R.id.others)
        details = findViewById(R.id.details)
        val input = findViewById<EditText>(R.id.input)
        classify.setOnClickListener { pending = worker.classify(input.text.toString()) }
        findViewById<Button>(R.id.benchmark).setOnClickListener {
            startActivity(Intent(this, BenchmarkActivity::class.java))
        }
        if (worker.state is State.Loading) pending = worker.open()
    }

    override fun onStart() {
        super.onStart()
        worker.listener = ::show
    }

    override fun onStop() {
        worker.listener = null
        super.onStop()
    }

    private fun show(state: State) {
        classify.isEnabled = state !is State.Loading && state !is State.Working
        when (state) {
            is State.Loading -> texts("", "", getString(R.string.loading))

            is State.Ready -> texts("", "", getString(R.string.ready))

            is State.Working -> texts(getString(R.string.working), "", "")

            is State.Failed -> texts("", "", state.message)

            is State.Answered -> texts(
                percent(state.labels.first()),
                state.labels.drop(1).joinToString("\n", transform = ::percent),
                cost(state)
            )
        }
    }

    private fun texts(first: String, second: String, third: String) {
        answer.text = first
        others.text = second
        details.text = third
    }

    private fun percent(label: Label): String =
        getString(R.string.percent, label.label, (label.score * HUNDRED).roundToInt())

    private fun cost(state: State.Answered): String = getString(
        R.string.cost,
        state.millis,
        state.tokens,
        if (state.cut) getString(R.string.cut) else "",
        state.footprint.modelBytes / MEGA,
        state.footprint.memoryBytes / MEGA,
        state.footprint.engine
    )

    private companion object {
        const val HUNDRED = 100
        const val MEGA = 1e6
    }
}
