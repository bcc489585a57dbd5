package sim

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
)

// mutant is a fault that is planted into the product to see whether the simulation finds it.
type mutant struct{ name, file, old, bad string }

// mutants are one for each kind of mistake that the layers could have.
var mutants = []mutant{
	{"owner bit ignored", "dv/cq.go", " && own&1 == ci>>c.log&1", ""},
	{"staging memory wraps without room", "dv/memory.go", "skip = 0, s.size-at", "skip = 0, 0"},
	{"one re-arm of 16 missed", "dv/rx_wait.go", `
	word := mlx5.ArmWord(`, `
	if q.count.arms.n++; q.count.arms.n%16 == 0 {
		return
	}
	word := mlx5.ArmWord(`},
	{"wake-up of a reader lost", "stack/socket_wait.go",
		"(l, mask|waiter.EventErr|waiter.EventHUp)", "(l, waiter.EventErr)"},
	{"duplicate ACK dropped", "link/rdma/ack.go", `
	pure := s.Payload == 0 && flags == hdr.FlagACK
`, `
	pure := s.Payload == 0 && flags == hdr.FlagACK
	if pure && ack == f.acked && f.held == nil && c.enqueue(f, place) {
		f.held, f.heldACK, f.heldWindow = pkt.IncRef(), ack, s.Window()
		return nil, true
	}
`},
	{"backlog in another order", "link/rdma/backlog.go", `
	b.head++
`, `
	if last := b.head - 1; b.head != b.tail {
		at, before := b.head%backlogPackets, last%backlogPackets
		b.ring[at], b.ring[before] = b.ring[before], b.ring[at]
	}
	b.head++
`},
	{"merged across a gap", "link/rdma/merge_fast.go",
		" | uint64(binary.BigEndian.Uint32(t[4:])^r.seq)", ""},
	{"frame released twice", "dv/rx_single.go", `
		pkts[i].Frame = NoFrame
		if pc == full`, `
		if pc%64 != 63 {
			pkts[i].Frame = NoFrame
		}
		if pc == full`},
	{"stale completions after recovery", "dv/rx_error.go", `
	q.inError = false
	q.cq.skip()
`, `
	q.inError = false
`},
	{"timer left behind", "link/rdma/backlog.go", `
	s.completions.timer.Stop()
`, `
`},
}

// root is the module's directory.
const root = "../.."

// plant returns the text of the file with the fault in it.
func (m *mutant) plant() (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if strings.Count(string(text), m.old) != 1 {
		return "", errors.New("the place to plant it at is not there: the table is out of date")
	}
	return strings.Replace(string(text), m.old, m.bad, 1), nil
}

// TestMutantsApply: each planted fault has its place in the source.
func TestMutantsApply(t *testing.T) {
	for _, m := range mutants {
		if _, err := m.plant(); err != nil {
			t.Errorf("%s, %s: %v", m.name, m.file, err)
		}
	}
}

// TestMutants: 2,000 seeds find each planted fault. It builds the command once for each.
func TestMutants(t *testing.T) {
	if os.Getenv("MUTANTS") == "" {
		need.That(t, "mutants", errors.New("they take minutes; make sim-mutants asks for them"))
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			out, err := exec.Command(m.build(t), "-seeds", "2000", "-first").CombinedOutput()
			if err == nil {
				t.Fatalf("no seed found it: %s", out)
			}
			first, _, _ := strings.Cut(string(out), "\n")
			t.Logf("found: %.300s", first)
		})
	}
}

// build builds the command with the fault, by go build's -overlay.
func (m *mutant) build(t *testing.T) (program string) {
	text, err := m.plant()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bad, overlay := filepath.Join(dir, "bad.go"), filepath.Join(dir, "overlay.json")
	program = filepath.Join(dir, "run")
	at, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {at: bad}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{bad: []byte(text), overlay: list} {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("go", "build", "-overlay", overlay, "-o", program, "./tests/sim/run")
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}
