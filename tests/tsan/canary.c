/* SPDX-License-Identifier: Apache-2.0
 * A race, called by two threads of Python: ThreadSanitizer must see it, or it sees nothing here. */
long canary_counter;

void canary_race(long times);

void
canary_race(long times)
{
    for (long i = 0; i < times; i++)
        canary_counter++;
}
