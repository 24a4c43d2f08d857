/* SPDX-License-Identifier: Apache-2.0
 *
 * target.hpp - the peer of an operation, as numbers. Its text is made when it is read, which a
 * message that ends well never needs. Immutable; any thread.
 */
#pragma once

#include <cstdint>
#include <string>

namespace rdmatensor
{

class Target
{
  public:
    static constexpr int64_t no_tag = -1;

    /* All members of the group: empty text. */
    constexpr Target() = default;
    static constexpr Target to(int rank, int64_t tag = no_tag) noexcept
    {
        return {Way::To, rank, tag};
    }
    static constexpr Target from(int rank, int64_t tag = no_tag) noexcept
    {
        return {Way::From, rank, tag};
    }
    static constexpr Target from_any(int64_t tag) noexcept
    {
        return {Way::FromAny, 0, tag};
    }
    constexpr bool is_all() const noexcept
    {
        return way_ == Way::All;
    }
    constexpr bool operator==(const Target &other) const noexcept
    {
        return way_ == other.way_ && rank_ == other.rank_ && tag_ == other.tag_;
    }
    /* " from rank 3, tag 0", to be appended to the operation's title; may be empty. */
    std::string words() const
    {
        constexpr const char *ways[] = {"", " to rank ", " from rank ", " from any rank"};
        std::string text = ways[static_cast<int>(way_)];

        if (way_ == Way::To || way_ == Way::From)
            text += std::to_string(rank_);
        if (tag_ != no_tag)
            text += ", tag " + std::to_string(tag_);
        return text;
    }

  private:
    enum class Way { All, To, From, FromAny };

    constexpr Target(Way way, int rank, int64_t tag) noexcept : way_(way), rank_(rank), tag_(tag) {}

    Way way_ = Way::All;
    int rank_ = 0; /* torch's global rank, not the rank in the group */
    int64_t tag_ = no_tag;
};

} // namespace rdmatensor
