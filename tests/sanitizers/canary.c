/* SPDX-License-Identifier: Apache-2.0
 * Faults on purpose, called from Python: a sanitizer must see its own, or it sees nothing here. */
#include <limits.h>
#include <stdlib.h>

long canary_counter;

void canary_race(long times);
char canary_overflow(long bytes);
int canary_undefined(int added);
void canary_leak(long bytes);

void
canary_race(long times)
{
    for (long i = 0; i < times; i++)
        canary_counter++;
}

char
canary_overflow(long bytes)
{
    char *memory = malloc((size_t)bytes);

    memory[bytes] = 1;
    const char read = memory[bytes];
    free(memory);
    return read;
}

int
canary_undefined(int added)
{
    return INT_MAX + added;
}

void
canary_leak(long bytes)
{
    char *volatile memory = malloc((size_t)bytes);

    memory[0] = 1;
    memory = NULL;
}
