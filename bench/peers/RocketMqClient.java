import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** One end of a measurement: for each line "BATCHES BYTES" on standard input it sends or takes so many, and says "done". */
public final class RocketMqClient {
    private static final String TOPIC = "rows";
    private static final Semaphore taken = new Semaphore(0);

    public static void main(String[] words) throws Exception {
        boolean sends = words[0].equals("send");
        TransactionMQProducer producer = sends ? producer(words[1]) : null;
        DefaultMQPushConsumer consumer = sends ? null : consumer(words[1]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] wanted = line.split(" ");
            int batches = Integer.parseInt(wanted[0]);
            if (sends) {
                send(producer, batches, Integer.parseInt(wanted[1]));
            } else {
                taken.acquire(batches);
            }
            System.out.println("done");
        }
        if (sends) {
            producer.shutdown();
        } else {
            consumer.shutdown();
        }
    }

    /** A half message and its commit, one after the other, as RocketMQ's transactions are used. */
    private static void send(TransactionMQProducer producer, int batches, int size) throws Exception {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        for (int n = 0; n < batches; n++) {
            SendStatus status = producer.sendMessageInTransaction(new Message(TOPIC, body), null).getSendStatus();
            if (status != SendStatus.SEND_OK) {
                throw new IllegalStateException("not on disk: " + status);
            }
        }
    }

    private static TransactionMQProducer producer(String nameServer) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("bench_producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.setMaxMessageSize(4_000_000);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(String nameServer) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_consumer");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(64);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            taken.release(found.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
