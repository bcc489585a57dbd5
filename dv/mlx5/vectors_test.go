package mlx5

import (
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/vectors.txt
var vectorText string

// Values the vectors share.
const (
	vecSQN    = 0x123
	vecLKey   = 0x12a4
	vecBuffer = 0x7f0012345000
)

// vector returns the named bytes of testdata/vectors.txt.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	_, rest, ok := strings.Cut(vectorText, "\n["+name+"] ")
	if !ok {
		t.Fatalf("no vector %q", name)
	}
	var out []byte
	for line := range strings.Lines(rest) {
		offset, groups, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || len(offset) != 4 {
			if out == nil {
				continue // the rest of the title
			}
			break
		}
		b, err := hex.DecodeString(strings.ReplaceAll(groups, " ", ""))
		if err != nil || offset != fmt.Sprintf("%04x", len(out)) {
			t.Fatalf("vector %q: line %q: %v", name, line, err)
		}
		out = append(out, b...)
	}
	return out
}

// poisoned returns n bytes of 0xa5, so that a byte an encoder forgets shows.
func poisoned(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xa5
	}
	return b
}

// same fails if got is not want, both shown as a manual would.
func same(t testing.TB, got, want []byte) {
	t.Helper()
	if string(got) != string(want) {
		t.Errorf("got\n%swant\n%s", hexOf(got), hexOf(want))
	}
}

// seed returns the seed of a test with random values, TEST_SEED if that is set.
func seed(t testing.TB) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("TEST_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 0, 64)
		if err != nil {
			t.Fatalf("TEST_SEED: %v", err)
		}
		s = n
	}
	t.Logf("TEST_SEED=%d", s)
	return s
}
