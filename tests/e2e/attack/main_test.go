//go:build linux

package attack

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// attackTime is the duration of each attack that is a flood or a queue of clients.
var attackTime = flag.Duration("for", 5*time.Second, "how long each attack goes on")

// childEnv, a number of queues, makes this program a server with faults instead of running the
// tests.
const childEnv = "ATTACK_CHILD"

func TestMain(m *testing.M) {
	if queues := os.Getenv(childEnv); queues != "" {
		os.Exit(faultyServer(queues, os.Stdin, os.Stdout, os.Stderr))
	}
	flag.Parse()
	code := m.Run()
	results.print(os.Stdout)
	if server.dir != "" {
		os.RemoveAll(server.dir)
	}
	os.Exit(code)
}

// required continues only where attacks are requested and possible.
func required(t *testing.T) {
	t.Helper()
	var err error
	if os.Getenv("ATTACKS") == "" {
		err = errors.New("they take minutes; make test-attacks asks for them")
	}
	need.That(t, "attacks", err)
	need.NetNS(t)
	need.TUN(t)
}

// server is the program under attack, built once.
var server struct {
	once      sync.Once
	dir, path string
	err       error
}

// program returns the path of the program under attack.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ATTACK_BINARY"); path != "" {
		return path
	}
	server.once.Do(func() {
		if server.dir, server.err = os.MkdirTemp("", "attack"); server.err != nil {
			return
		}
		server.path = filepath.Join(server.dir, "rdma-netstack")
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", server.path,
			"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			server.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	must(t, server.err)
	return server.path
}

// table is the results of the tests, in the order they ended.
type table struct {
	mu   sync.Mutex
	rows []row
}

// row is one attack. Shares are fractions of requests; a share that was not measured is negative.
type row struct {
	attack        string
	during, after float64
	growth        int64 // of resident memory, bytes
	limit         int64 // of growth; 0: growthLimit
	note          string
	failed        bool
}

var results table

func (r *table) add(x row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, x)
}

func (r *table) print(w *os.File) {
	if len(r.rows) == 0 {
		return
	}
	const line = "%-42s %8s %8s %10s  %-6s %s\n"
	fmt.Fprintf(w, "\n"+line, "attack", "during", "after", "RSS growth", "", "")
	for _, x := range r.rows {
		verdict := "ok"
		if x.failed {
			verdict = "FAILED"
		}
		fmt.Fprintf(w, line, x.attack, percent(x.during), percent(x.after),
			strconv.FormatFloat(float64(x.growth)/(1<<20), 'f', 1, 64)+" MiB", verdict, x.note)
	}
	fmt.Fprintf(w,
		"during, after: legitimate requests answered; after: from a second after the end. "+
			"Attacks of %v.\n",
		*attackTime)
}

func percent(share float64) string {
	if share < 0 {
		return "-"
	}
	return strconv.FormatFloat(100*share, 'f', 1, 64) + " %"
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
