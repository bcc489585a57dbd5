//go:build race

package upstream

import (
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// bulk begins the tests that send much.
func bulk(t *testing.T) {
	t.Helper()
	need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
}
