package hostmode

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// TestTellOfFilters: the log has one line of filters that Linux may not be able to free at once.
func TestTellOfFilters(t *testing.T) {
	var out bytes.Buffer
	h := &Host{env: &env.Env{Log: slog.New(slog.NewTextHandler(&out, nil)), Name: "eth0"}}
	h.tellOfFilters(0)
	if h.tellOfFilters(manyFilters); out.Len() != 0 {
		t.Errorf("the log has %q", out.String())
	}
	for _, n := range []int{manyFilters + 1, 1, 5 * manyFilters} {
		h.tellOfFilters(n)
		if text := out.String(); strings.Count(text, "\n") != 1 ||
			!strings.Contains(text, "filters=1001") {
			t.Errorf("after %d the log has %q, want one line of 1001", n, text)
		}
	}
}
