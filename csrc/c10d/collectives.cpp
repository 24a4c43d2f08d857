/* SPDX-License-Identifier: Apache-2.0
 * torch's collectives, translated into calls of the library. */
#include <torch/csrc/distributed/c10d/exception.h>

#include "c10d/backend.hpp"

namespace rdmatensor
{
namespace
{

using c10d::OpType;

void
check_lists(size_t outputs, size_t inputs, const char *call)
{
    if (outputs != inputs)
        throw_value_error(call,
                          c10::str(outputs, " output tensors for ", inputs, " input tensors"));
}

/* Number of elements for each member and their offset, both in elements. */
struct Splits {
    std::vector<uint64_t> counts;
    std::vector<uint64_t> offs;
};

/* Splits along the first dimension; equal ones if `rows` is empty. */
Splits
splits_of(const at::Tensor &tensor, const std::vector<int64_t> &rows, int size, const char *call)
{
    const auto members = static_cast<size_t>(size);
    const int64_t all_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const int64_t row_elems = all_rows == 0 ? 1 : tensor.numel() / all_rows;
    Splits splits;
    int64_t row = 0;

    if (rows.empty() && all_rows % size != 0)
        throw_value_error(call, c10::str("the first dimension of ", tensor.sizes(),
                                         " does not divide by ", size, " ranks"));
    if (!rows.empty() && rows.size() != members)
        throw_value_error(call, c10::str(rows.size(), " split sizes for ", size, " ranks"));
    for (size_t i = 0; i < members; i++) {
        const int64_t count = rows.empty() ? all_rows / size : rows[i];
        if (count < 0 || count > all_rows - row)
            throw_value_error(call, c10::str("the split sizes ", rows, " do not fit ", all_rows,
                                             " rows"));
        splits.counts.push_back(static_cast<uint64_t>(count * row_elems));
        splits.offs.push_back(static_cast<uint64_t>(row * row_elems));
        row += count;
    }
    if (row != all_rows)
        throw_value_error(call, c10::str("the split sizes ", rows, " sum to ", row, " of ",
                                         all_rows, " rows"));
    return splits;
}

/* The library counts elements of one dtype. A tensor that is sent as bytes is counted in bytes. */
void
scale(Splits &splits, const at::Tensor &tensor, const Elements &elements)
{
    if (elements.count == static_cast<uint64_t>(tensor.numel()))
        return;
    for (size_t i = 0; i < splits.counts.size(); i++) {
        splits.counts[i] *= tensor.element_size();
        splits.offs[i] *= tensor.element_size();
    }
}

} // namespace

void
Backend::check_root(int64_t root, const char *call) const
{
    if (root < 0 || root >= size_)
        throw_value_error(call, c10::str("root ", root, " of a group of ", size_, " ranks"));
}

WorkPtr
Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts)
{
    constexpr const char *call = "broadcast";
    const at::Tensor &given = only_tensor(tensors, call);
    StandIns stand_ins(stand_ins_, call);

    check_root(opts.rootRank, call);
    stand_ins.check_writable(given);
    const at::Tensor tensor =
        rank_ == opts.rootRank ? stand_ins.sent(given) : stand_ins.received(given);
    rdt_coll_args args =
        args_for(RDT_COLL_BROADCAST, elements_of(tensor, false, call), opts.timeout);
    args.root = static_cast<uint32_t>(opts.rootRank);
    args.recv = tensor.data_ptr();
    return start(collective(OpType::BROADCAST, "rdmatensor:broadcast", opts, {tensor}, tensors,
                            &stand_ins),
                 {args});
}

WorkPtr
Backend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    constexpr const char *call = "all_reduce";
    if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse())
        return allreduce_sparse(tensors, opts);
    StandIns stand_ins(stand_ins_, call);
    const at::Tensor tensor = stand_ins.exchanged(only_tensor(tensors, call));
    rdt_coll_args args =
        args_for(RDT_COLL_ALLREDUCE, elements_of(tensor, true, call), opts.timeout);

    const at::Tensor input = premultiplied(tensor, opts.reduceOp, call);
    args.reduce_op = reduce_op_of(opts.reduceOp, call);
    args.send = input.data_ptr();
    args.recv = tensor.data_ptr();
    return start(collective(OpType::ALLREDUCE, "rdmatensor:all_reduce", opts, {input}, tensors,
                            &stand_ins),
                 {args});
}

WorkPtr
Backend::average_bucket(const at::Tensor &bucket, uint32_t label)
{
    constexpr const char *call = "all_reduce";
    rdt_coll_args args =
        args_for(RDT_COLL_ALLREDUCE, elements_of(bucket, true, call), c10d::kUnsetTimeout);
    Tensors tensors = {bucket};

    args.reduce_op = RDT_AVG;
    args.flags = RDT_COLL_LABEL(label);
    args.send = bucket.data_ptr();
    args.recv = bucket.data_ptr();
    return start(collective(OpType::ALLREDUCE, "rdmatensor:all_reduce", c10d::AllreduceOptions(),
                            tensors, tensors),
                 {args});
}

WorkPtr
Backend::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts)
{
    constexpr const char *call = "all_reduce";
    const uint32_t reduce_op = reduce_op_of(opts.reduceOp, call);
    StandIns stand_ins(stand_ins_, call);
    Tensors summed;
    Calls calls;

    for (const at::Tensor &tensor : tensors) {
        check_tensor(tensor, call);
        summed.push_back(stand_ins.exchanged(tensor));
    }
    Tensors inputs = premultiplied(summed, opts.reduceOp, call);
    for (size_t i = 0; i < tensors.size(); i++) {
        rdt_coll_args args =
            args_for(RDT_COLL_ALLREDUCE, elements_of(tensors[i], true, call), opts.timeout);
        args.reduce_op = reduce_op;
        args.send = inputs[i].data_ptr();
        args.recv = summed[i].data_ptr();
        calls.add(args);
    }
    return start(collective(OpType::ALLREDUCE_COALESCED, "rdmatensor:all_reduce", opts,
                            std::move(inputs), tensors, &stand_ins),
                 calls.all());
}

WorkPtr
Backend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts)
{
    constexpr const char *call = "reduce";
    const at::Tensor &given = only_tensor(tensors, call);
    StandIns stand_ins(stand_ins_, call);

    check_root(opts.rootRank, call);
    stand_ins.check_writable(given);
    const at::Tensor tensor =
        rank_ == opts.rootRank ? stand_ins.exchanged(given) : stand_ins.sent(given);
    rdt_coll_args args = args_for(RDT_COLL_REDUCE, elements_of(tensor, true, call), opts.timeout);
    args.reduce_op = reduce_op_of(opts.reduceOp, call);
    args.root = static_cast<uint32_t>(opts.rootRank);
    const at::Tensor input = premultiplied(tensor, opts.reduceOp, call);
    args.send = input.data_ptr();
    args.recv = tensor.data_ptr();
    return start(collective(OpType::REDUCE, "rdmatensor:reduce", opts, {input}, tensors,
                            &stand_ins),
                 {args});
}

WorkPtr
Backend::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                   const c10d::AllgatherOptions &opts)
{
    constexpr const char *call = "all_gather";
    StandIns stand_ins(stand_ins_, call);
    const at::Tensor input = stand_ins.sent(only_tensor(inputs, call));
    const Tensors &list = only_list(outputs, call);
    rdt_coll_args args =
        args_for(RDT_COLL_ALLGATHER, elements_of(input, false, call), opts.timeout);

    check_members(list, input, size_, call);
    const std::vector<void *> blocks = addresses_of(stand_ins.received(list));
    args.send = input.data_ptr();
    args.blocks = blocks.data();
    return start(collective(OpType::ALLGATHER, "rdmatensor:all_gather", opts, {input}, list,
                            &stand_ins),
                 {args});
}

WorkPtr
Backend::_allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts)
{
    Tensors outputs = {output};
    Tensors inputs = {input};

    return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr
Backend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                         const c10d::AllgatherOptions &opts)
{
    constexpr const char *call = "all_gather";
    StandIns stand_ins(stand_ins_, call);
    Tensors sent;
    Calls calls;

    check_lists(outputs.size(), inputs.size(), call);
    for (size_t i = 0; i < inputs.size(); i++) {
        check_whole(outputs[i], inputs[i], size_, call);
        sent.push_back(stand_ins.sent(inputs[i]));
        rdt_coll_args args =
            args_for(RDT_COLL_ALLGATHER, elements_of(inputs[i], false, call), opts.timeout);
        args.send = sent[i].data_ptr();
        args.recv = stand_ins.received(outputs[i]).data_ptr();
        calls.add(args);
    }
    return start(collective(OpType::_ALLGATHER_BASE, "rdmatensor:all_gather", opts, std::move(sent),
                            outputs, &stand_ins),
                 calls.all());
}

WorkPtr
Backend::allgather_coalesced(std::vector<Tensors> &output_lists, Tensors &inputs,
                             const c10d::AllgatherOptions &opts)
{
    constexpr const char *call = "all_gather";
    std::vector<std::vector<void *>> blocks(inputs.size());
    StandIns stand_ins(stand_ins_, call);
    std::vector<Call> calls;
    Tensors outputs;
    Tensors sent;

    check_lists(output_lists.size(), static_cast<size_t>(size_), call);
    for (const Tensors &list : output_lists) {
        check_lists(list.size(), inputs.size(), call);
        outputs.insert(outputs.end(), list.begin(), list.end());
    }
    for (size_t i = 0; i < inputs.size(); i++) {
        Tensors members;
        for (const Tensors &list : output_lists)
            members.push_back(list[i]);
        check_tensor(inputs[i], call);
        check_members(members, inputs[i], size_, call);
        blocks[i] = addresses_of(stand_ins.received(members));
        sent.push_back(stand_ins.sent(inputs[i]));
        rdt_coll_args args =
            args_for(RDT_COLL_ALLGATHER, elements_of(inputs[i], false, call), opts.timeout);
        args.send = sent[i].data_ptr();
        args.blocks = blocks[i].data();
        calls.emplace_back(args);
    }
    return start(collective(OpType::ALLGATHER_COALESCED, "rdmatensor:all_gather", opts,
                            std::move(sent), outputs, &stand_ins),
                 calls);
}

WorkPtr
Backend::gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &opts)
{
    constexpr const char *call = "gather";
    StandIns stand_ins(stand_ins_, call);
    const at::Tensor input = stand_ins.sent(only_tensor(inputs, call));
    std::vector<void *> blocks;
    Tensors list;

    check_root(opts.rootRank, call);
    if (rank_ == opts.rootRank) {
        list = only_list(outputs, call);
        check_members(list, input, size_, call);
        blocks = addresses_of(stand_ins.received(list));
    } else if (!outputs.empty() && !outputs[0].empty()) {
        throw_value_error(call, "output tensors are given on a rank that is not the root");
    }
    rdt_coll_args args = args_for(RDT_COLL_GATHER, elements_of(input, false, call), opts.timeout);
    args.root = static_cast<uint32_t>(opts.rootRank);
    args.send = input.data_ptr();
    args.blocks = blocks.empty() ? nullptr : blocks.data();
    return start(collective(OpType::GATHER, "rdmatensor:gather", opts, {input}, list, &stand_ins),
                 {args});
}

WorkPtr
Backend::scatter(Tensors &outputs, std::vector<Tensors> &inputs, const c10d::ScatterOptions &opts)
{
    constexpr const char *call = "scatter";
    StandIns stand_ins(stand_ins_, call);
    const at::Tensor output = stand_ins.received(only_tensor(outputs, call));
    std::vector<void *> blocks;
    Tensors list;

    check_root(opts.rootRank, call);
    if (rank_ == opts.rootRank) {
        check_members(only_list(inputs, call), output, size_, call);
        list = stand_ins.sent(inputs[0]);
        blocks = addresses_of(list);
    } else if (!inputs.empty() && !inputs[0].empty()) {
        throw_value_error(call, "input tensors are given on a rank that is not the root");
    }
    rdt_coll_args args = args_for(RDT_COLL_SCATTER, elements_of(output, false, call), opts.timeout);
    args.root = static_cast<uint32_t>(opts.rootRank);
    args.recv = output.data_ptr();
    args.blocks = blocks.empty() ? nullptr : blocks.data();
    return start(collective(OpType::SCATTER, "rdmatensor:scatter", opts, list, outputs, &stand_ins),
                 {args});
}

WorkPtr
Backend::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                        const c10d::ReduceScatterOptions &opts)
{
    constexpr const char *call = "reduce_scatter";
    StandIns stand_ins(stand_ins_, call);
    const at::Tensor output = stand_ins.received(only_tensor(outputs, call));
    rdt_coll_args args =
        args_for(RDT_COLL_REDUCE_SCATTER, elements_of(output, true, call), opts.timeout);

    check_members(only_list(inputs, call), output, size_, call);
    const Tensors list = premultiplied(stand_ins.sent(inputs[0]), opts.reduceOp, call);
    const std::vector<void *> blocks = addresses_of(list);
    args.reduce_op = reduce_op_of(opts.reduceOp, call);
    args.blocks = blocks.data();
    args.recv = output.data_ptr();
    return start(collective(OpType::REDUCE_SCATTER, "rdmatensor:reduce_scatter", opts, list,
                            outputs, &stand_ins),
                 {args});
}

WorkPtr
Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                              const c10d::ReduceScatterOptions &opts)
{
    Tensors outputs = {output};
    Tensors inputs = {input};

    return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr
Backend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                         const c10d::ReduceScatterOptions &opts)
{
    constexpr const char *call = "reduce_scatter";
    const uint32_t reduce_op = reduce_op_of(opts.reduceOp, call);
    StandIns stand_ins(stand_ins_, call);
    Calls calls;

    check_lists(outputs.size(), inputs.size(), call);
    for (size_t i = 0; i < inputs.size(); i++)
        check_whole(inputs[i], outputs[i], size_, call);
    Tensors sources = premultiplied(stand_ins.sent(inputs), opts.reduceOp, call);
    for (size_t i = 0; i < inputs.size(); i++) {
        rdt_coll_args args =
            args_for(RDT_COLL_REDUCE_SCATTER, elements_of(outputs[i], true, call), opts.timeout);
        args.reduce_op = reduce_op;
        args.send = sources[i].data_ptr();
        args.recv = stand_ins.received(outputs[i]).data_ptr();
        calls.add(args);
    }
    return start(collective(OpType::_REDUCE_SCATTER_BASE, "rdmatensor:reduce_scatter", opts,
                            std::move(sources), outputs, &stand_ins),
                 calls.all());
}

WorkPtr
Backend::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                       std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts)
{
    constexpr const char *call = "all_to_all";
    check_tensor(output, call);
    check_tensor(input, call);
    check_same_dtype(output, input, call);

    StandIns stand_ins(stand_ins_, call);
    const at::Tensor source = stand_ins.sent(input);
    const Elements elements = elements_of(input, false, call);
    Splits sent = splits_of(input, input_splits, size_, call);
    Splits received = splits_of(output, output_splits, size_, call);
    scale(sent, input, elements);
    scale(received, output, elements_of(output, false, call));
    rdt_coll_args args = args_for(RDT_COLL_ALLTOALL, elements, opts.timeout);
    args.count = 0; /* the arrays hold the counts; ranks may differ */
    args.send = source.data_ptr();
    args.recv = stand_ins.received(output).data_ptr();
    args.send_counts = sent.counts.data();
    args.send_offs = sent.offs.data();
    args.recv_counts = received.counts.data();
    args.recv_offs = received.offs.data();
    return start(collective(OpType::ALLTOALL_BASE, "rdmatensor:all_to_all", opts, {source},
                            {output}, &stand_ins),
                 {args});
}

WorkPtr
Backend::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts)
{
    constexpr const char *call = "all_to_all";
    const auto members = static_cast<size_t>(size_);
    std::vector<uint64_t> sent;
    std::vector<uint64_t> received;

    if (inputs.size() != members || outputs.size() != members)
        throw_value_error(call, c10::str(inputs.size(), " input and ", outputs.size(),
                                         " output tensors for a group of ", size_, " ranks"));
    for (size_t i = 0; i < members; i++) {
        check_tensor(inputs[i], call);
        check_tensor(outputs[i], call);
        check_same_dtype(inputs[0], inputs[i], call);
        check_same_dtype(inputs[0], outputs[i], call);
        sent.push_back(elements_of(inputs[i], false, call).count);
        received.push_back(elements_of(outputs[i], false, call).count);
    }
    StandIns stand_ins(stand_ins_, call);
    Tensors given = stand_ins.sent(inputs);
    const std::vector<void *> sources = addresses_of(given);
    const std::vector<void *> blocks = addresses_of(stand_ins.received(outputs));
    rdt_coll_args args =
        args_for(RDT_COLL_ALLTOALL, elements_of(inputs[0], false, call), opts.timeout);
    args.count = 0;
    args.send_blocks = sources.data();
    args.blocks = blocks.data();
    args.send_counts = sent.data();
    args.recv_counts = received.data();
    return start(collective(OpType::ALLTOALL, "rdmatensor:all_to_all", opts, std::move(given),
                            outputs, &stand_ins),
                 {args});
}

/* Collectives that were started before a barrier are complete after it, including those for which
 * the program never called wait(). */
WorkPtr
Backend::barrier(const c10d::BarrierOptions &opts)
{
    refuse_forked_child("rdmatensor:barrier");
    in_flight_->wait(timeout_or_own(opts.timeout), "rdmatensor:barrier");
    return start(collective(OpType::BARRIER, "rdmatensor:barrier", opts, {}, {}),
                 {args_for(RDT_COLL_BARRIER, {0, 0}, opts.timeout)});
}

} // namespace rdmatensor
