// SPDX-License-Identifier: Apache-2.0
//
// parameters - a parameter server over gRPC in C++, and its workers' side.
//
// The server holds the parameters. Each worker has one stream to it, both ways. A gradient leaves
// as soon as it is there, in pieces; once a piece of all workers is here, the server takes the
// mean, does the optimizer's step and sends the new values to everybody. Bytes are not serialised:
// messages are gRPC's own slices, which on their way out refer to the tensors themselves, and are
// copied once where they arrive. Each stream has a thread that reads and one that writes. Limits
// on messages are lifted; frames are as large as HTTP/2 lets them be.
//
// bench/workers/grpc_native.py loads the functions at the end. They return 0 or a handle, else -1
// or nullptr, and then params_error() says why, in that thread.
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Dense float32 in row-major order. A worker has two places for the values of each, in turn: new
// values arrive in the one that backward does not read. The server has one.
struct params_tensor {
    float *values;
    float *other;
    const uint64_t *dims;
    uint64_t ndim;
};

namespace
{

using grpc::ByteBuffer;
using grpc::Slice;
using ServerStream = grpc::ServerReaderWriter<ByteBuffer, ByteBuffer>;
using ClientStream = grpc::ClientReaderWriter<ByteBuffer, ByteBuffer>;

constexpr char TRAIN[] = "/bench.Parameters/Train";
constexpr char SPENT[] = "/bench.Parameters/Spent";
constexpr char DTYPE[8] = {'f', 'l', 'o', 'a', 't', '3', '2', '\0'};
constexpr int FRAME_BYTES = (16 << 20) - 1; // HTTP/2's largest
constexpr size_t BLOCK = 2048;              // floats that are summed at a time: they stay in L1

// As it travels, little-endian; then its dims.
struct Head {
    uint32_t index;
    uint8_t ndim;
    uint8_t padding[3];
    uint64_t offset_bytes;
    char dtype[sizeof(DTYPE)];
};
static_assert(sizeof(Head) == 24);

thread_local std::string last_error;

int
failed(const std::string &why)
{
    last_error = why;
    return -1;
}

std::chrono::system_clock::time_point
deadline_of(double timeout_s)
{
    return std::chrono::system_clock::now() +
           std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
}

size_t
numel_of(const params_tensor &tensor)
{
    size_t numel = 1;
    for (uint64_t i = 0; i < tensor.ndim; i++)
        numel *= tensor.dims[i];
    return numel;
}

// The message of a piece. Its values are sent from where they are: no thread may write there until
// the answer to it has come.
ByteBuffer
message_of(uint32_t index, const params_tensor &tensor, const float *all, size_t first,
           size_t count)
{
    Head head = {index, static_cast<uint8_t>(tensor.ndim), {}, first * sizeof(float), {}};
    std::memcpy(head.dtype, DTYPE, sizeof(DTYPE));
    std::string start(reinterpret_cast<const char *>(&head), sizeof(head));
    start.append(reinterpret_cast<const char *>(tensor.dims), tensor.ndim * sizeof(uint64_t));
    const Slice slices[] = {
        Slice(start),
        Slice(const_cast<float *>(all + first), count * sizeof(float), [](void *) {}),
    };
    return ByteBuffer(slices, 2);
}

// Reads a message, whose slices begin and end anywhere.
class Cursor
{
  public:
    explicit Cursor(const ByteBuffer &message)
    {
        if (!message.Dump(&slices_).ok())
            throw std::runtime_error("a message cannot be read");
        for (const Slice &slice : slices_)
            left_ += slice.size();
    }

    size_t left() const
    {
        return left_;
    }

    void take(void *out, size_t bytes)
    {
        if (bytes > left_)
            throw std::runtime_error("a message is too short");
        left_ -= bytes;
        for (char *at = static_cast<char *>(out); bytes > 0;) {
            const Slice &slice = slices_[number_];
            const size_t n = std::min(bytes, slice.size() - off_);
            std::memcpy(at, slice.begin() + off_, n);
            at += n;
            bytes -= n;
            off_ += n;
            if (off_ == slice.size()) {
                off_ = 0;
                number_++;
            }
        }
    }

  private:
    std::vector<Slice> slices_;
    size_t number_ = 0;
    size_t off_ = 0;
    size_t left_ = 0;
};

struct Where {
    size_t index;
    size_t first; // element
    size_t count;
};

// What a message is about; what it says of its tensor has to be so.
Where
parse(Cursor &cursor, const params_tensor *tensors, size_t count)
{
    Head head;
    cursor.take(&head, sizeof(head));
    if (std::memcmp(head.dtype, DTYPE, sizeof(DTYPE)) != 0 || head.index >= count)
        throw std::runtime_error("a message is of no tensor that is known here");
    const params_tensor &tensor = tensors[head.index];
    std::vector<uint64_t> dims(head.ndim);
    cursor.take(dims.data(), dims.size() * sizeof(uint64_t));
    if (!std::equal(dims.begin(), dims.end(), tensor.dims, tensor.dims + tensor.ndim))
        throw std::runtime_error("a tensor came with another shape");
    const Where where = {head.index, head.offset_bytes / sizeof(float),
                         cursor.left() / sizeof(float)};
    const size_t numel = numel_of(tensor);
    if (where.first > numel || where.count > numel - where.first)
        throw std::runtime_error("values came for what lies behind a tensor's end");
    return where;
}

template <typename Item> class Queue
{
  public:
    void put(Item item)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        items_.push_back(std::move(item));
        changed_.notify_one();
    }

    Item get()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !items_.empty(); });
        Item item = std::move(items_.front());
        items_.pop_front();
        return item;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Item> items_;
};

// ---- Server ---------------------------------------------------------------------------------

// The optimizer's step with the mean of what workers sent. Where the CPU can, product and
// difference are rounded as one (-ffp-contract=fast), as torch does it: a model may amplify the
// last bit to another curve within three steps, and parameters are compared after so many.
__attribute__((target_clones("fma", "default"))) void
descend(float *values, const float *total, size_t count, float part, float rate)
{
    for (size_t k = 0; k < count; k++)
        values[k] -= rate * (total[k] * part);
}

// Part of a parameter, and what the workers sent for it in this step.
struct Piece {
    uint32_t index;
    size_t first;
    size_t count;
    std::mutex mutex;
    std::vector<Cursor> arrived;
};

class Service final : public grpc::Service
{
  public:
    Service(const params_tensor *tensors, size_t count, size_t piece_bytes, size_t workers,
            float rate)
        : tensors_(tensors), count_(count), workers_(workers), rate_(rate)
    {
        const size_t step = piece_bytes / sizeof(float);
        for (size_t i = 0; i < count; i++)
            for (size_t first = 0, numel = numel_of(tensors[i]); first < numel; first += step) {
                Piece &piece = pieces_[{i, first}];
                piece.index = static_cast<uint32_t>(i);
                piece.first = first;
                piece.count = std::min(step, numel - first);
            }
        AddMethod(new grpc::internal::RpcServiceMethod(
            TRAIN, grpc::internal::RpcMethod::BIDI_STREAMING,
            new grpc::internal::BidiStreamingHandler<Service, ByteBuffer, ByteBuffer>(
                [](Service *self, grpc::ServerContext *, ServerStream *stream) {
                    return self->train(stream);
                },
                this)));
        AddMethod(new grpc::internal::RpcServiceMethod(
            SPENT, grpc::internal::RpcMethod::NORMAL_RPC,
            new grpc::internal::RpcMethodHandler<Service, ByteBuffer, ByteBuffer, ByteBuffer,
                                                 ByteBuffer>(
                [](Service *, grpc::ServerContext *, const ByteBuffer *, ByteBuffer *out) {
                    timespec now = {};
                    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
                    const Slice text(
                        std::to_string(now.tv_sec * INT64_C(1000000000) + now.tv_nsec));
                    *out = ByteBuffer(&text, 1);
                    return grpc::Status::OK;
                },
                this)));
    }

    // Whether all workers ended their streams before the deadline.
    bool wait(std::chrono::system_clock::time_point deadline)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_until(lock, deadline, [this] { return ended_ == workers_ || !why_.empty(); });
        return ended_ == workers_ && why_.empty();
    }

    std::string why()
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        return why_.empty() ? "the workers did not end" : why_;
    }

  private:
    using Out = Queue<const Piece *>; // nullptr: the end

    grpc::Status train(ServerStream *stream)
    {
        Out out;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            outs_.push_back(&out);
        }
        std::thread writer([this, stream, &out] {
            bool is_open = true;
            while (const Piece *piece = out.get()) {
                const params_tensor &tensor = tensors_[piece->index];
                is_open = is_open && stream->Write(message_of(piece->index, tensor, tensor.values,
                                                              piece->first, piece->count));
            }
        });
        std::string why;
        ByteBuffer message;
        try {
            while (stream->Read(&message))
                take(message);
        } catch (const std::exception &error) {
            why = error.what();
        }
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            outs_.erase(std::find(outs_.begin(), outs_.end(), &out));
            ended_++;
            if (why_.empty())
                why_ = why;
        }
        changed_.notify_all();
        out.put(nullptr);
        writer.join();
        return why.empty() ? grpc::Status::OK
                           : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, why);
    }

    void take(const ByteBuffer &message)
    {
        Cursor cursor(message);
        const Where where = parse(cursor, tensors_, count_);
        const auto found = pieces_.find({where.index, where.first});
        if (found == pieces_.end() || found->second.count != where.count)
            throw std::runtime_error("a gradient came in other pieces");
        Piece &piece = found->second;
        {
            const std::lock_guard<std::mutex> lock(piece.mutex);
            piece.arrived.push_back(std::move(cursor));
            if (piece.arrived.size() < workers_)
                return;
            step(piece);
            piece.arrived.clear();
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        for (Out *out : outs_)
            out->put(&piece);
    }

    void step(Piece &piece)
    {
        float total[BLOCK];
        float other[BLOCK];
        float *values = tensors_[piece.index].values + piece.first;
        for (size_t done = 0; done < piece.count; done += BLOCK) {
            const size_t n = std::min(BLOCK, piece.count - done);
            piece.arrived[0].take(total, n * sizeof(float));
            for (size_t i = 1; i < piece.arrived.size(); i++) {
                piece.arrived[i].take(other, n * sizeof(float));
                for (size_t k = 0; k < n; k++)
                    total[k] += other[k];
            }
            const float part = 1.0F / static_cast<float>(workers_);
            descend(values + done, total, n, part, rate_);
        }
    }

    const params_tensor *tensors_;
    size_t count_;
    size_t workers_;
    float rate_;
    std::map<std::pair<size_t, size_t>, Piece> pieces_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Out *> outs_;
    size_t ended_ = 0;
    std::string why_;
};

void
serve(const char *address, const params_tensor *tensors, size_t count, size_t piece_bytes,
      size_t workers, float rate, const char *port_file, double timeout_s)
{
    Service service(tensors, count, piece_bytes, workers, rate);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (server == nullptr || port == 0)
        throw std::runtime_error(std::string("cannot listen on ") + address);
    const std::string draft = std::string(port_file) + ".draft";
    FILE *file = std::fopen(draft.c_str(), "w");
    if (file == nullptr || std::fprintf(file, "%d", port) < 0 || std::fclose(file) != 0 ||
        std::rename(draft.c_str(), port_file) != 0)
        throw std::runtime_error("cannot write " + draft);
    const bool is_over = service.wait(deadline_of(timeout_s));
    server->Shutdown(deadline_of(is_over ? timeout_s : 0)); // ends as soon as the streams have
    if (!is_over)
        throw std::runtime_error(service.why());
}

} // namespace

// ---- Worker ---------------------------------------------------------------------------------

struct params_client {
  public:
    params_client(const char *address, const params_tensor *tensors, size_t count,
                  size_t piece_bytes, double timeout_s)
        : tensors_(tensors), count_(count), step_(piece_bytes / sizeof(float)),
          deadline_(deadline_of(timeout_s))
    {
        for (size_t i = 0; i < count; i++)
            due_ += (numel_of(tensors[i]) + step_ - 1) / step_;
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(-1);
        arguments.SetMaxSendMessageSize(-1);
        arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES);
        channel_ =
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
        context_.set_deadline(deadline_);
        context_.set_wait_for_ready(true);
        const grpc::internal::RpcMethod method(TRAIN, grpc::internal::RpcMethod::BIDI_STREAMING,
                                               channel_);
        stream_.reset(grpc::internal::ClientReaderWriterFactory<ByteBuffer, ByteBuffer>::Create(
            channel_.get(), method, &context_));
        writer_ = std::thread([this] { write(); });
        reader_ = std::thread([this] { read(); });
    }

    void push(size_t index, const float *gradient)
    {
        out_.put({index, gradient});
    }

    bool pull()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return received_ == due_ || !why_.empty(); });
        if (!why_.empty()) {
            failed(why_);
            return false;
        }
        received_ = 0;
        is_other_ = !is_other_;
        return true;
    }

    int64_t server_spent_ns()
    {
        const grpc::internal::RpcMethod method(SPENT, grpc::internal::RpcMethod::NORMAL_RPC,
                                               channel_);
        grpc::ClientContext context;
        ByteBuffer answer;
        const Slice nothing("");
        context.set_deadline(deadline_);
        const grpc::Status status = grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(
            channel_.get(), method, &context, ByteBuffer(&nothing, 1), &answer);
        if (!status.ok())
            return failed(status.error_message());
        Cursor cursor(answer);
        std::string text(cursor.left(), '\0');
        cursor.take(text.data(), text.size());
        return std::stoll(text);
    }

    int close()
    {
        out_.put({0, nullptr});
        writer_.join();
        reader_.join();
        return why_ == ENDED ? 0 : failed(why_);
    }

  private:
    static constexpr const char *ENDED = "the stream has ended";

    void write()
    {
        bool is_open = true;
        for (;;) {
            const auto [index, gradient] = out_.get();
            if (gradient == nullptr)
                break;
            const size_t numel = numel_of(tensors_[index]);
            for (size_t first = 0; is_open && first < numel; first += step_)
                is_open =
                    stream_->Write(message_of(static_cast<uint32_t>(index), tensors_[index],
                                              gradient, first, std::min(step_, numel - first)));
        }
        stream_->WritesDone();
    }

    float *place_of(const params_tensor &tensor)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        return is_other_ ? tensor.other : tensor.values;
    }

    // New values go where backward does not read; the next come after the next gradients.
    void read()
    {
        std::string why;
        ByteBuffer message;
        try {
            while (stream_->Read(&message)) {
                Cursor cursor(message);
                const Where where = parse(cursor, tensors_, count_);
                const params_tensor &tensor = tensors_[where.index];
                float *to = place_of(tensor);
                cursor.take(to + where.first, where.count * sizeof(float));
                const std::lock_guard<std::mutex> lock(mutex_);
                if (++received_ == due_)
                    changed_.notify_all();
            }
        } catch (const std::exception &error) {
            why = error.what();
            context_.TryCancel();
        }
        const grpc::Status status = stream_->Finish();
        const std::lock_guard<std::mutex> lock(mutex_);
        why_ = !why.empty() ? why : status.ok() ? ENDED : "gRPC: " + status.error_message();
        changed_.notify_all();
    }

    const params_tensor *tensors_;
    size_t count_;
    size_t step_; // elements of a piece
    std::chrono::system_clock::time_point deadline_;
    size_t due_ = 0;
    std::shared_ptr<grpc::Channel> channel_;
    grpc::ClientContext context_;
    std::unique_ptr<ClientStream> stream_;
    Queue<std::pair<size_t, const float *>> out_; // nullptr: the end
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t received_ = 0;
    bool is_other_ = true;
    std::string why_;
    std::thread writer_;
    std::thread reader_;
};

extern "C" {

const char *
params_error(void)
{
    return last_error.c_str();
}

// Hold the tensors until all workers have ended their streams; `address` is HOST:PORT, the port may
// be 0. The port that it listens on is written to `port_file`, which is new then.
int
params_serve(const char *address, const params_tensor *tensors, size_t count, size_t piece_bytes,
             size_t workers, float rate, const char *port_file, double timeout_s)
{
    try {
        serve(address, tensors, count, piece_bytes, workers, rate, port_file, timeout_s);
        return 0;
    } catch (const std::exception &error) {
        return failed(error.what());
    }
}

// `tensors` and what they point to outlive the client. The deadline is that of the whole stream.
params_client *
params_connect(const char *address, const params_tensor *tensors, size_t count, size_t piece_bytes,
               double timeout_s)
{
    try {
        return new params_client(address, tensors, count, piece_bytes, timeout_s);
    } catch (const std::exception &error) {
        failed(error.what());
        return nullptr;
    }
}

// Send a gradient, from a thread of the client; it must not change before params_pull().
void
params_push(params_client *client, size_t index, const float *gradient)
{
    client->push(index, gradient);
}

// Wait until all new values are here: in `other` after the first, third... time.
int
params_pull(params_client *client)
{
    return client->pull() ? 0 : -1;
}

// Processor time of the server's process so far.
int64_t
params_server_spent_ns(params_client *client)
{
    return client->server_spent_ns();
}

// End the stream, and free the client, also where it returns -1.
int
params_close(params_client *client)
{
    const int result = client->close();
    delete client;
    return result;
}
}
