// Package attack tests a server on a slice against hostile frames and against faults of the NIC.
// Each test starts a real server in a child process, in a network namespace that the test made,
// lets ordinary clients use it before, during and after one attack, and reads the resident memory
// of the child from /proc. "make test-attacks" runs them and prints one table.
//
// Attacks send only inside the test's own namespace, for the time of the flag -for, or up to four
// times as long where the machine is so busy that clients make few requests, with random numbers
// whose seed is logged: TEST_SEED repeats them. ATTACK_BINARY names a rdma-netstack to
// attack in place of the one that the test builds from this tree.
package attack
