/* SPDX-License-Identifier: Apache-2.0
 * Pages that are populated before the first store, and memory that is left alone. */
#include "base/memory/pages.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGES = 300 };

/* How many of the pages are there; the kernel says for each. */
static unsigned
pages_there(void *first, uint64_t page_bytes)
{
    unsigned char is_there[PAGES];
    unsigned count = 0;

    CHECK_INT_EQ(mincore(first, PAGES * page_bytes, is_there), 0);
    for (unsigned i = 0; i < PAGES; i++)
        count += is_there[i] & 1;
    return count;
}

TEST(pages_come_before_the_first_store)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint8_t *const first =
        mmap(NULL, PAGES * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(first != MAP_FAILED);
    (void)madvise(first, PAGES * page_bytes, MADV_NOHUGEPAGE); /* fails where there are none */
    first[0] = 7; /* as of somebody else, before where a tensor begins */
    rdti_pages_populate(first + 64, 8 * page_bytes);
    CHECK_UINT_EQ(pages_there(first, page_bytes), 1); /* too short to ask for */
    rdti_pages_populate(first + 64, (PAGES - 10) * page_bytes);
    /* All whose first byte was asked for, and the last's bit; by faults only before Linux 5.14. */
    const bool is_known = madvise(first, 0, MADV_POPULATE_WRITE) == 0;
    CHECK_UINT_EQ(pages_there(first, page_bytes), is_known ? PAGES - 9 : 1);
    CHECK_UINT_EQ(first[0], 7);
    memset(first, 9, PAGES * page_bytes);
    rdti_pages_populate(first, PAGES * page_bytes);
    CHECK_UINT_EQ(first[PAGES * page_bytes - 1], 9);
    CHECK_INT_EQ(munmap(first, PAGES * page_bytes), 0);
    rdti_pages_populate(first, PAGES * page_bytes); /* nothing there: the store would tell */
}

TEST_MAIN()
