package uverbs_test

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// The recordings in testdata are of unmodified kernels with the software NIC as a PCI function.
// tests/vm creates them (make test-vm UPDATE=1, which takes CARD=cx5 for another card than the
// kernel's).

// machine is a kernel with a card, and the release of package kernel that models the kernel.
type machine struct {
	kernel, card string
	models       kernel.Release
}

// machines are those with recordings: each kernel with a ConnectX-6 Dx, and with the card that it
// has in tests/vm.
var machines = []machine{
	{"6.1", "cx6dx", kernel.Linux612}, {"6.1", "cx5", kernel.Linux612},
	{"6.12", "cx6dx", kernel.Linux612}, {"6.12", "cx4lx", kernel.Linux612},
	{"7.2", "cx6dx", kernel.Linux72}, {"7.2", "cx7", kernel.Linux72},
	{"7.3", "cx6dx", kernel.Linux72},
}

func (m machine) String() string { return "linux-" + m.kernel + "-" + m.card }

// talk is a sequence of steps to record, and the privileges of its process.
type talk struct {
	steps func() []step
	linux kernel.Config
	fits  func(e uverbs.Environment) bool
}

// confinedLimit is the memory lock limit of the confined process, in bytes.
const confinedLimit = 64 << 10

var talks = map[string]talk{
	"all": {allSteps, kernel.Config{},
		func(e uverbs.Environment) bool { return e.NetRaw && e.IPCLock }},
	"confined": {confinedSteps, kernel.Config{NoNetRaw: true, NoRawIO: true,
		Memlock: confinedLimit}, func(e uverbs.Environment) bool {
		return !e.NetRaw && !e.IPCLock && e.Memlock == confinedLimit
	}},
	"lockless": {locklessSteps, kernel.Config{Memlock: -1}, func(e uverbs.Environment) bool {
		return e.NetRaw && !e.IPCLock && e.Memlock == 0
	}},
}

// each runs a test for every machine and recording.
func each(t *testing.T, test func(t *testing.T, m machine, name string)) {
	for _, m := range machines {
		for name := range talks {
			t.Run(m.String()+"/"+name, func(t *testing.T) { test(t, m, name) })
		}
	}
}

// recording is the trace of a kernel's replies.
func recording(t *testing.T, m machine, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", m.String()+"."+name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTalkWithStockKernels replays recordings of unmodified kernels: the requests are equal in
// every byte, so the errnos are those of the kernels.
func TestTalkWithStockKernels(t *testing.T) {
	each(t, func(t *testing.T, m machine, name string) {
		k, err := uverbs.Replay(bytes.NewReader(recording(t, m, name)))
		if err != nil {
			t.Fatal(err)
		}
		hold(t, k, talks[name].steps())
	})
}

// TestTalkWithSoftwareNIC sends the same requests to package kernel, and compares its replies with
// the kernels'.
func TestTalkWithSoftwareNIC(t *testing.T) {
	need.Pages(t, recordedPages)
	each(t, func(t *testing.T, m machine, name string) {
		card, err := simnic.CardNamed(m.card)
		if err != nil {
			t.Fatal(err)
		}
		// package pcie does not have these
		card.Caps.DelayDrop, card.Caps.Pacing = false, simnic.PacingCap{}
		nic, err := simnic.New(simnic.Config{Seed: 1, Card: m.card, Caps: card.Caps,
			RealTimeClock: card.RealTimeOption})
		if err != nil {
			t.Fatal(err)
		}
		defer nic.Close()
		linux := talks[name].linux
		linux.Release, linux.Vectors = m.models, 2
		k, err := kernel.New(nic, linux).OpenNode()
		if err != nil {
			t.Fatal(err)
		}
		var trace bytes.Buffer
		hold(t, uverbs.Record(&withClock{k}, &trace), talks[name].steps())
		compare(t, decode(t, trace.Bytes()), decode(t, recording(t, m, name)))
	})
}

// withClock provides the one page that package kernel does not have: process memory cannot be a
// running clock.
type withClock struct{ uverbs.Kernel }

func (k *withClock) Mmap(offset int64, length int, writable bool) (*uverbs.Page, error) {
	p, err := k.Kernel.Mmap(offset, length, writable)
	if offset == 0x500000 && errors.Is(err, unix.EOPNOTSUPP) {
		return &uverbs.Page{Trap: func(int, uint64) {}}, nil
	}
	return p, err
}

// TestTalkWithDevice runs the steps that the privileges of this process allow on a device for
// tests. TALK_TRACE names a file for the recording.
func TestTalkWithDevice(t *testing.T) {
	need.Hardware(t)
	for name, talk := range talks {
		t.Run(name, func(t *testing.T) {
			k := openDevice(t)
			env, err := uverbs.ReadEnvironment()
			if err == nil && !talk.fits(env) {
				err = fmt.Errorf("the process has %+v", env)
			}
			need.That(t, "confinement", err)
			if name := os.Getenv("TALK_TRACE"); name != "" {
				f, err := os.Create(name)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				k = uverbs.Record(k, f)
			}
			hold(t, k, talk.steps())
		})
	}
}

// openDevice opens the node of the device that tests may use.
func openDevice(t *testing.T) uverbs.Kernel {
	t.Helper()
	name := need.Hardware(t)
	infos, err := uverbs.Discover("")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.IBDev == name {
			k, err := uverbs.OpenNode(i.Node)
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
	}
	t.Fatalf("%s has no node", name)
	return nil
}

// said is one call of a recording.
type said struct {
	Name  string
	Errno string
	Ioctl struct {
		Attrs []struct {
			ID  int
			Out string
		}
	}
}

func decode(t *testing.T, trace []byte) (all []said) {
	t.Helper()
	for d := json.NewDecoder(bytes.NewReader(trace)); d.More(); {
		var s said
		if err := d.Decode(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// span is a range of bytes of a reply, and the reason why two machines may differ there.
type span struct {
	attr, from, to int
	why            string
}

// differences are the spans of replies that may differ, by command.
var differences = map[string][]span{
	"GET_CONTEXT": {
		{uhwOut, 4, 8, "whether the machine combines writes"},
		{uhwOut, 36, 37, "a clock page, which the in-process face has not"},
		{uhwOut, 47, 48, "a clock page"},
	},
	"QUERY_DEVICE": {
		{coreOut, 8, 24, "identity"},
		{coreOut, 56, 60, "max_qp_wr, which newer kernels reckon in large WQEs"},
		{uhwOut, 4, 5, "the length of the struct in linux 6.1"},
	},
	"QUERY_PORT": {
		{coreOut, 0, 4, "RoCE, which is off at the firmware face"},
		{coreOut, 16, 20, "RoCE"},
		{coreOut, 34, 36, "speed"},
		{coreOut, 38, 39, "RoCE"},
	},
	"ALLOC_PD":           {{uhwOut, 0, 4, "number"}},
	"REG_MR":             {{coreOut, 4, 12, "keys"}},
	"CREATE_CQ":          {{uhwOut, 0, 4, "number"}},
	"CREATE_QP":          {{coreOut, 4, 8, "number"}},
	"CREATE_WQ":          {{coreOut, 20, 24, "number"}},
	"CREATE_RWQ_IND_TBL": {{coreOut, 12, 16, "number"}},
}

const coreOut, uhwOut = 1, 0x1001

// compare requires the same errnos, the same lengths of replies, and the same bytes except the
// known differences.
func compare(t *testing.T, got, want []said) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d calls, the kernel had %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		what := fmt.Sprintf("call %d, %s", i+1, w.Name)
		if older := w.Errno == "EINVAL" && g.Errno == "ENOTSUP"; g.Name != w.Name ||
			g.Errno != w.Errno && !older {
			t.Errorf("%s: errno %q, the kernel's is %q", what, g.Errno, w.Errno)
			continue
		}
		for j, a := range w.Ioctl.Attrs {
			compareAnswer(t, what, a.ID, g.Ioctl.Attrs[j].Out, a.Out, differences[w.Name])
		}
	}
}

func compareAnswer(t *testing.T, what string, attr int, got, want string, known []span) {
	t.Helper()
	g, err1 := hex.DecodeString(got)
	w, err2 := hex.DecodeString(want)
	if err1 != nil || err2 != nil || len(g) != len(w) {
		t.Errorf("%s, attribute %#x: %d bytes, the kernel gave %d", what, attr, len(g), len(w))
		return
	}
	for _, s := range known {
		if s.attr == attr && len(g) >= s.to {
			copy(g[s.from:s.to], w[s.from:s.to])
		}
	}
	for k := range w {
		if g[k] != w[k] {
			t.Errorf("%s, attribute %#x: byte %d is %#x, the kernel's is %#x",
				what, attr, k, g[k], w[k])
		}
	}
}
