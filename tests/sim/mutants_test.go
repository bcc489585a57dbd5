package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/sim/build"
)

// mutant is a fault that is planted into the product to see whether the simulation finds it.
type mutant struct{ name, file, old, bad string }

// mutants are one for each kind of mistake that the layers could have.
var mutants = []mutant{
	{"owner bit ignored", "dv/cq.go", " && own&1 == ci>>c.log&1", ""},
	{"staging memory wraps without room", "dv/memory.go", "skip = 0, s.size-at", "skip = 0, 0"},
	{"one re-arm of 16 missed", "dv/rx.go", `
	word := mlx5.ArmWord(`, `
	if q.count.arms.n%16 == 15 {
		q.count.arms.n++
		return
	}
	word := mlx5.ArmWord(`},
	{"wake-up of a reader lost", "stack/socket.go",
		"e.Init(l, mask)", "e.Init(l, waiter.EventErr)"},
	{"duplicate ACK dropped", "link/rdma/internal/delack/coalescer.go", `
	if pure && c.enqueue(f, c.queueOf(`, `
	if pure && ack == f.acked && f.held == nil && c.enqueue(f, &c.short) {
		f.held, f.heldACK, f.heldWindow = pkt.IncRef(), ack, window
		return nil, true
	}
	if pure && c.enqueue(f, c.queueOf(`},
	{"backlog in another order", "link/rdma/backlog.go", `
	b.head++
`, `
	if last := b.head - 1; b.head != b.tail {
		at, before := b.head%backlogPackets, last%backlogPackets
		b.ring[at], b.ring[before] = b.ring[before], b.ring[at]
	}
	b.head++
`},
	{"merged across a gap", "link/rdma/merge.go",
		" | uint64(binary.BigEndian.Uint32(t[4:])^r.seq)", ""},
	{"frame released twice", "dv/rx_single.go", `
		q.writeBuffer(pc, f)
		pc++
`, `
		q.writeBuffer(pc, f)
		if pc%64 == 63 {
			q.pool.returnFrames([]Frame{f})
		}
		pc++
`},
	{"stale completions after recovery", "dv/rx_error.go", `
	q.inError = false
	q.cq.skipAll()
`, `
	q.inError = false
`},
	{"backlog dropped at a switch", "link/rdma/sender.go", `
	old.Unlock()
	s.drain()
`, `
	old.Unlock()
	for ; !s.backlog.empty(); s.backlog.pop() {
	}
`},
	{"rest of a replaced queue dropped", "link/rdma/worker.go", `
	w.deliverRest()
`, `
`},
	{"SYN not noted", "link/rdma/steer.go", "s.Share == ShareNote && a.syn", "false && a.syn"},
	{"timer left behind", "link/rdma/backlog.go", `
	s.completions.timer.Stop()
`, `
`},
	{"datagrams joined behind a short one", "link/rdma/merge_datagrams.go",
		"return payload < r.mss || r.datagrams", "return r.datagrams"},
	{"wait for a rate without an end", "stack/tcp_conn.go", `
		c.stack.conns.paced.noteWait(p.stream.Stalled())
		p.timer.Reset(wait)
`, `
		c.stack.conns.paced.noteWait(p.stream.Stalled())
`},
	{"bytes of a rate counted half", "internal/pacing/stream.go",
		"s.allowed -= n", "s.allowed -= n / 2"},
	{"header not counted in a path's MTU", pathMTUFile, "e.mtu - ipHeaderLen(r)", "e.mtu"},
	{"netdev made again not kept from the kernel", besideFolder + "/follow.go", `
	d.Last = max(last, 1)
	return h.setDevice(d)`, `
	_ = last
	return nil`},
	{"filters of sockets' own not renewed", besideFolder + "/follow.go",
		"errs = append(errs, p.socket.FollowDevice())", "_ = p.socket"},
	{"new packet sockets without ports", besideFolder + "/follow.go", `
	err = h.tellAllPorts()
	h.mu.Unlock()
`, `
	h.mu.Unlock()
`},
	{"ports without connections kept", besideFolder + "/ports.go",
		"		if busy[p.key.at] {", "		if busy[p.key.at] || true {"},
	{"new address without rules", besideFolder + "/follow.go",
		"errs = append(errs, h.rules.AddBlock(h.env.Ctx, h.block.First, p.Addr()))",
		"_ = h.rules"},
	{"new address without listeners", besideFolder + "/follow.go",
		"errs = append(errs, h.join(b, p.Addr()))", "_ = b"},
	{"grace of a netdev's addresses left out", besideFolder + "/follow.go",
		"case grace > 0:", "case grace > time.Hour:"},
}

// pathMTUFile names the file of faults that worlds with a router show, besideFolder the folder of
// those that worlds on the address of a kernel do.
const (
	pathMTUFile  = "stack/path_mtu.go"
	besideFolder = "stack/internal/hostmode"
)

// flags returns those of run for the worlds that show a mutant.
func (m *mutant) flags() []string {
	if m.file == pathMTUFile {
		return []string{"-path"}
	}
	if path.Dir(m.file) == besideFolder {
		return []string{"-host"}
	}
	return nil
}

// root is the module's directory.
const root = "../.."

// plant returns the text of the file with the fault in it.
func (m *mutant) plant() (string, error) { return m.plantIn("") }

// plantIn is plant into text, or into the file as it is if that is "".
func (m *mutant) plantIn(text string) (string, error) {
	if text == "" {
		b, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			return "", err
		}
		text = string(b)
	}
	if strings.Count(text, m.old) != 1 {
		return "", errors.New("the place to plant it at is not there: the table is out of date")
	}
	return strings.Replace(text, m.old, m.bad, 1), nil
}

// TestMutantsApply: each planted fault has its place in the source, and all of them together build.
func TestMutantsApply(t *testing.T) {
	need.Long(t, "builds three packages with faults planted into them")
	texts, args := map[string]string{}, []string{"build"}
	for _, m := range mutants {
		text, err := m.plantIn(texts[m.file])
		if err != nil {
			t.Fatalf("%s, %s: %v", m.name, m.file, err)
		}
		if texts[m.file] == "" {
			args = append(args, module+"/"+path.Dir(m.file))
		}
		texts[m.file] = text
	}
	dir, replace := t.TempDir(), map[string]string{}
	for file, text := range texts {
		replace[absolute(t, file)] = write(t, dir, fmt.Sprintf("%d.go", len(replace)), text)
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	args = slices.Insert(args, 1, "-overlay", write(t, dir, "overlay.json", string(list)))
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

const module = "github.com/rdma-netstack/rdma-netstack"

// absolute is the path of a file of the module.
func absolute(t *testing.T, file string) string {
	at, err := filepath.Abs(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// write makes a file, and returns its path.
func write(t *testing.T, dir, name, text string) string {
	at := filepath.Join(dir, name)
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

// quick are the mutants that TestMutants plants without being asked: those that the first worlds
// find.
var quick = []string{}

// TestMutants: 2,000 seeds find each planted fault. It builds the command once for each.
func TestMutants(t *testing.T) {
	need.Long(t, "builds the simulation with faults planted into it")
	var table strings.Builder
	tabs := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tabs, "fault\tfirst seed\tseeds run\tfound by")
	for _, m := range mutants {
		if os.Getenv("MUTANTS") == "" && !slices.Contains(quick, m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			f, err := m.find(t)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("world %d: %s", f.seed, f.why)
			fmt.Fprintf(tabs, "%s\t%d\t%d\t%.110s\n", m.name, f.seed, f.run, f.why)
		})
	}
	tabs.Flush()
	t.Logf("\n%s", table.String())
}

// finding is the first world that shows a mutant.
type finding struct {
	seed uint64
	run  int    // how many were run
	why  string // what was violated
}

var failure = regexp.MustCompile(`(?s)^seed (\d+): (.*?)\n  repeat: `)

// find runs worlds one after the other, until one fails.
func (m *mutant) find(t *testing.T) (f finding, err error) {
	out, err := exec.Command(m.build(t), append(m.flags(), "-seeds", "2000", "-jobs", "1",
		"-first")...).Output()
	found := failure.FindSubmatch(out)
	if err == nil || found == nil {
		return f, fmt.Errorf("no seed found it (%v): %s", err, out)
	}
	if f.seed, err = strconv.ParseUint(string(found[1]), 10, 64); err != nil {
		return f, err
	}
	f.run = int(f.seed) + 1
	f.why = strings.Join(strings.Fields(string(found[2])), " ")
	return f, nil
}

// build builds the command with the fault.
func (m *mutant) build(t *testing.T) (program string) {
	text, err := m.plant()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bad := write(t, dir, "bad.go", text)
	program = filepath.Join(dir, "worlds")
	if _, err := build.World(program, map[string]string{absolute(t, m.file): bad}); err != nil {
		t.Fatal(err)
	}
	return program
}
