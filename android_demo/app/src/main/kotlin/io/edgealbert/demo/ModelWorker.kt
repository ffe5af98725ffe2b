package io.edgealbert.demo

import android.content.res.AssetManager
import android.os.Handler
import android.os.Looper
import io.edgealbert.BundleAssets
import io.edgealbert.EdgeAlbertException
import io.edgealbert.ProcessMemory
import io.edgealbert.Session
import io.edgealbert.tasks.Label
import io.edgealbert.tasks.TextClassifier
import java.io.File
import java.util.concurrent.Executors
import java.util.concurrent.Future

/** What the screen shows. */
sealed class State {
    object Loading : State()

    object Ready : State()

    object Working : State()

    class Answered(
        val labels: List<Label>,
        val tokens: Int,
        val cut: Boolean,
        val millis: Double,
        val footprint: Footprint
    ) : State()

    /** [message] is one line that says what to do. */
    class Failed(val message: String) : State()
}

/** What the model costs besides time. */
class Footprint(val modelBytes: Long, val memoryBytes: Long, val engine: String)

/**
 * The model on a thread of its own, opened at the first request. States are delivered on the main
 * thread to whoever listens at that time, so a screen may come and go (rotate) while a text is
 * being classified: the next one gets the latest state as soon as it listens.
 */
class ModelWorker(private val assets: AssetManager, private val storage: File) {
    private val thread = Executors.newSingleThreadExecutor { Thread(it, "edge_albert") }
    private val main = Handler(Looper.getMainLooper())
    private var session: Session? = null // the thread's own

    /** Main thread only, like [listener]. */
    var state: State = State.Loading
        private set

    var listener: ((State) -> Unit)? = null
        set(value) {
            field = value
            value?.invoke(state)
        }

    /** Opens the bundle, so that the first text need not wait for it. */
    fun open(): Future<*> = submit {
        session()
        State.Ready
    }

    fun classify(text: String): Future<*> {
        show(State.Working)
        return submit { answer(session(), text) }
    }

    /** Runs [task] with the open session on the model's thread; its result is the task's own affair. */
    fun withSession(task: (Session) -> Unit): Future<*> = submit {
        task(session())
        State.Ready
    }

    private fun answer(session: Session, text: String): State {
        val started = System.nanoTime()
        val encoding = session.encode(text, truncate = true)
        val labels = TextClassifier(session).classify(encoding)
        val millis = (System.nanoTime() - started) / NANOS_PER_MILLI
        return State.Answered(
            labels,
            encoding.size,
            encoding.size == session.maxLength && encoding.ends.max() < text.trimEnd().length,
            millis,
            Footprint(session.modelBytes, ProcessMemory.anonymousBytes(), session.engineVersion)
        )
    }

    private fun session(): Session = session ?: BundleAssets.open(assets, storage).also { session = it }

    private fun submit(task: () -> State): Future<*> = thread.submit {
        val next = try {
            task()
        } catch (error: EdgeAlbertException) {
            State.Failed(error.message.orEmpty())
        }
        main.post { show(next) }
    }

    private fun show(next: State) {
        state = next
        listener?.invoke(next)
    }

    private companion object {
        const val NANOS_PER_MILLI = 1e6
    }
}
