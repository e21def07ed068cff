// A delay service as one writes it with Kafka Streams: what waits is in a RocksDB store under its due, the changelog
// topic makes the store again, and a punctuator fires. Run from source: java -cp 'jars/*' DelayStreams.java ARGUMENTS.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public class DelayStreams {
    static final String DUE = "filewheel-due-ms", TARGET = "scheduler-target-topic";
    static final int AT_ONCE = 20_000;
    static final AtomicLong TAKEN = new AtomicLong(), FIRED = new AtomicLong();

    static class Wait implements Processor<byte[], byte[], byte[], byte[]> {
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<Bytes, byte[]> store;
        private long least = 0;  // nothing that waits is due before: the range need not pass over deleted keys

        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            this.store = context.getStateStore("waiting");
            context.schedule(Duration.ofMillis(5), PunctuationType.WALL_CLOCK_TIME, this::fire);
        }

        public void process(Record<byte[], byte[]> record) {
            long due = Long.parseLong(text(record.headers().lastHeader(DUE).value()));
            byte[] target = record.headers().lastHeader(TARGET).value();
            long offset = context.recordMetadata().get().offset();
            store.put(key(due, offset),
                ByteBuffer.allocate(2 + target.length + record.value().length)
                    .putShort((short) target.length).put(target).put(record.value()).array());
            least = Math.min(least, due);
            TAKEN.incrementAndGet();
        }

        private void fire(long now) {
            int count = 0;
            try (var due = store.range(key(least, 0), key(System.currentTimeMillis(), Long.MAX_VALUE))) {
                while (due.hasNext() && count++ < AT_ONCE) {
                    var waiting = due.next();
                    ByteBuffer packed = ByteBuffer.wrap(waiting.value);
                    byte[] target = new byte[packed.getShort()];
                    packed.get(target);
                    byte[] value = new byte[packed.remaining()];
                    packed.get(value);
                    context.forward(new Record<>(null, value, now, new RecordHeaders().add(TARGET, target)));
                    store.delete(waiting.key);
                    least = ByteBuffer.wrap(waiting.key.get()).getLong();
                    FIRED.incrementAndGet();
                }
            }
        }
    }

    static Bytes key(long due, long offset) {
        return Bytes.wrap(ByteBuffer.allocate(16).putLong(due).putLong(offset).array());
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws InterruptedException {
        String topic = arguments[1];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", topic + ".streams");
        settings.put("state.dir", arguments[2]);
        settings.put("processing.guarantee", arguments[3]);
        settings.put("num.stream.threads", "2");
        settings.put("replication.factor", "1");
        settings.put("consumer.session.timeout.ms", "10000");
        settings.put("consumer.heartbeat.interval.ms", "3000");
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("producer.linger.ms", "1");
        var bytes = new ByteArraySerializer();
        var read = new ByteArrayDeserializer();
        Topology topology = new Topology()
            .addSource("in", read, read, topic)
            .addProcessor("wait", Wait::new, "in")
            .addStateStore(
                Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("waiting"), Serdes.Bytes(), Serdes.ByteArray())
                    .withLoggingEnabled(Map.of()), "wait")
            .addSink("out",
                (key, value, record) -> text(record.headers().lastHeader(TARGET).value()), bytes, bytes, "wait");
        KafkaStreams streams = new KafkaStreams(topology, settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        while (streams.state() != KafkaStreams.State.ERROR) {
            long active = streams.state() == KafkaStreams.State.RUNNING
                ? streams.metadataForLocalThreads().stream().mapToLong(each -> each.activeTasks().size()).sum() : 0;
            System.out.printf("FIGURES taken=%d fired=%d active=%d%n", TAKEN.get(), FIRED.get(), active);
            Thread.sleep(50);
        }
        System.exit(1);
    }
}
