package peers;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.module.blackbird.BlackbirdModule;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The two core metrics with exactly-once processing: BOOTSTRAP INPUT OUTPUT APPLICATION EVENTS CLOSES.
 *
 * <p>Set up to be fast: a store in memory with its changelog, whose cache takes a rollout's updates between two commits
 * together; keys and values as a few bytes, a step's rollouts under one prefix; large fetches.
 */
public final class StepMetrics {
    @JsonIgnoreProperties(ignoreUnknown = true)
    public static final class Event {
        public String type;
        public String run_id;
        public int step;
        public int group_index;
        public long rollout_id;
        public double reward;
    }

    private static final String STORE = "rollouts";
    private static final int VALUE_BYTES = Integer.BYTES + Double.BYTES;
    private static final ObjectMapper JSON = new ObjectMapper().registerModule(new BlackbirdModule());
    private static final ObjectReader EVENTS = JSON.readerFor(Event.class);

    /** A step's rollouts in a store of bytes: count and sum of rewards each. */
    private static final class PerStep implements Processor<byte[], byte[], byte[], byte[]> {
        private final AtomicInteger closesLeft;
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<Bytes, byte[]> rollouts;
        private long began;

        PerStep(AtomicInteger closesLeft) {
            this.closesLeft = closesLeft;
        }

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            rollouts = given.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            if (began == 0) {
                began = System.currentTimeMillis();
            }
            try {
                Event event = EVENTS.readValue(record.value());
                if (event.type.equals("sample")) {
                    take(event);
                } else {
                    close(event, record.timestamp());
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private void take(Event event) {
            byte[] key = key(event, Integer.BYTES + Long.BYTES).putInt(event.group_index).putLong(event.rollout_id).array();
            Bytes rollout = Bytes.wrap(key);
            byte[] before = rollouts.get(rollout);
            ByteBuffer after = ByteBuffer.allocate(VALUE_BYTES);
            if (before == null) {
                after.putInt(1).putDouble(event.reward);
            } else {
                ByteBuffer kept = ByteBuffer.wrap(before);
                after.putInt(kept.getInt() + 1).putDouble(kept.getDouble() + event.reward);
            }
            rollouts.put(rollout, after.array());
        }

        private void close(Event event, long timestamp) throws IOException {
            long samples = 0;
            double means = 0;
            List<Bytes> closed = new ArrayList<>();
            Bytes prefix = Bytes.wrap(key(event, 0).array());
            try (KeyValueIterator<Bytes, byte[]> all = rollouts.prefixScan(prefix, Serdes.Bytes().serializer())) {
                while (all.hasNext()) {
                    KeyValue<Bytes, byte[]> one = all.next();
                    ByteBuffer kept = ByteBuffer.wrap(one.value);
                    int count = kept.getInt();
                    samples += count;
                    means += kept.getDouble() / count;
                    closed.add(one.key);
                }
            }
            for (Bytes rollout : closed) {
                rollouts.delete(rollout);
            }
            Map<String, Object> result = Map.of(
                "step", event.step, "num_training_samples", samples, "episode_raw_reward", means / closed.size());
            byte[] name = (event.run_id + "/" + event.step).getBytes(StandardCharsets.UTF_8);
            context.forward(new Record<>(name, JSON.writeValueAsBytes(result), timestamp));
            if (closesLeft.decrementAndGet() == 0) {
                System.out.printf("{\"began\": %.3f}%n", began / 1000.0);
                System.out.flush();
            }
        }

        private static ByteBuffer key(Event event, int more) {
            byte[] run = event.run_id.getBytes(StandardCharsets.UTF_8);
            return ByteBuffer.allocate(Short.BYTES + run.length + Integer.BYTES + more)
                .putShort((short) run.length).put(run).putInt(event.step);
        }
    }

    public static void main(String[] args) throws Exception {
        Path folder = Files.createTempDirectory("kafka-streams-peer");
        AtomicInteger closesLeft = new AtomicInteger(Integer.parseInt(args[5]));
        var bytes = Serdes.ByteArray();
        var store = Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(STORE), Serdes.Bytes(), bytes);

        Topology topology = new Topology();
        topology.addSource("events", bytes.deserializer(), bytes.deserializer(), args[1]);
        topology.addProcessor("steps", () -> new PerStep(closesLeft), "events");
        topology.addStateStore(store.withCachingEnabled().withLoggingEnabled(Map.of()), "steps");
        topology.addSink("results", args[2], bytes.serializer(), bytes.serializer(), "steps");

        KafkaStreams streams = new KafkaStreams(topology, settings(args[0], args[3], folder));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
        streams.start();
        while (System.in.read() >= 0) {
            continue; // until whoever started this closes its input
        }
        streams.close();
        streams.cleanUp();
        Files.deleteIfExists(folder);
    }

    private static Properties settings(String bootstrap, String application, Path folder) {
        Properties made = new Properties();
        made.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        made.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        made.put(StreamsConfig.STATE_DIR_CONFIG, folder.toString());
        made.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        made.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        made.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        made.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        made.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 64L * 1024 * 1024);
        made.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 20_000);
        made.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        made.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 5_000);
        made.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 8 * 1024 * 1024);
        made.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        made.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 * 1024);
        return made;
    }
}
