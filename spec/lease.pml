/* The core of spec/Tenure.tla as a model for Spin: one job, its lease and its token.
 *
 *     spin -a lease.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000        the assertions
 *     spin -DBROKEN -a lease.pml ...                                              settling by job id alone: refuted
 *
 * Three workers claim, pause, and settle with the proof they were given, however old it is. Time passes, and the sweeper
 * takes over expired leases. Each inner `atomic` is one transaction; other processes may run between two of them. */

#define WORKERS 3
#define ATTEMPTS 3

mtype = { waiting, leased, done, dead };

mtype state = waiting;
byte token = 0;        /* grows with every delivery */
byte attempt = 0;
byte left = 0;         /* ticks until the lease ends */
byte holder = 0;       /* the lease: token and holder stand for its id */
byte settled = 0;      /* how often the job was settled for good */

#ifdef BROKEN
#define holds(t) (state == leased)
#else
#define holds(t) (state == leased && token == t && left > 0)
#endif

proctype Worker(byte me)
{
    byte proof = 0;
    do
    :: atomic { state == waiting && attempt < ATTEMPTS ->
           token++; attempt++; proof = token; state = leased; holder = me; left = 2 }
    :: atomic { proof > 0 && holds(proof) ->               /* ack */
           assert(holder == me && token == proof && left > 0);
           state = done; settled++; proof = 0 }
    :: atomic { proof > 0 && holds(proof) ->               /* nack */
           assert(holder == me && token == proof && left > 0);
           if :: attempt < ATTEMPTS -> state = waiting
              :: else -> state = dead; settled++
           fi; proof = 0 }
    :: atomic { proof > 0 && holds(proof) && token < 6 ->  /* release: not counted; only a few times, so that the model is finite */
           attempt--; state = waiting; proof = 0 }
    :: state == done || state == dead -> break
    od
}

active proctype Time()
{
    do
    :: atomic { left > 0 -> left-- }
    :: atomic { state == leased && left == 0 ->            /* the sweeper */
           if :: attempt < ATTEMPTS -> state = waiting
              :: else -> state = dead; settled++
           fi }
    :: state == done || state == dead -> break
    od
}

init
{
    byte number = 1;
    atomic { do :: number <= WORKERS -> run Worker(number); number++ :: else -> break od };
    (state == done || state == dead);
    assert(settled == 1 && attempt <= ATTEMPTS)
}
