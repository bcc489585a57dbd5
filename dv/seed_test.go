package dv

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// testSeed is a new seed, logged, or the one in TEST_SEED.
func testSeed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("TEST_SEED: %v", err)
		}
		seed = n
	}
	t.Logf("TEST_SEED=%d", seed)
	return seed
}
