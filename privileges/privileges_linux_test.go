//go:build amd64 || arm64

package privileges

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// report is what the probe prints.
type report struct {
	Error        string
	Tried, Tasks map[string][]string
}

// probe is the program testdata/probe, without cgo, and its directories.
type probe struct{ program, readable, writable, tmp string }

func newProbe(t *testing.T) probe {
	need.Root(t)
	p := probe{filepath.Join(t.TempDir(), "probe"), t.TempDir(), t.TempDir(), t.TempDir()}
	build := exec.Command(need.Tool(t, "go"), "build", "-trimpath", "-o", p.program,
		"./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(p.readable, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// run has the probe give up what is named, in host name and process namespaces of its own.
func (p probe) run(t *testing.T, what ...string) (r report) {
	t.Helper()
	cmd := exec.Command(p.program, append([]string{p.readable, p.writable}, what...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+p.tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS}
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		errors.As(err, &failed)
		t.Fatalf("%v: %s", err, failed.Stderr)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.Error != "" {
		t.Fatal(r.Error)
	}
	return r
}

// TestInProcess: after each of the functions every thread of a real process may do what is left,
// and nothing else.
func TestInProcess(t *testing.T) {
	p := newProbe(t)
	_, err := handledAccesses()
	if err != nil {
		err = errors.Join(err, errors.New("CONFIG_SECURITY_LANDLOCK, or the parameter lsm"))
	}
	const (
		eperm  = "operation not permitted"
		eacces = "permission denied"
	)
	exec := "fork/exec /bin/true: "
	for _, tt := range []struct {
		name    string
		what    []string
		refused map[string]string // attempts that fail, and how; all others succeed
		status  map[string]string // of each thread
	}{
		{"nothing", nil, nil, map[string]string{"NoNewPrivs": "0", "Seccomp": "0"}},
		{"capabilities", []string{"all"},
			map[string]string{"raw socket": eperm, "packet socket": eperm, "host name": eperm},
			map[string]string{"CapEff": "0000000000000000", "CapPrm": "0000000000000000",
				"CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1"}},
		{"capabilities but one", []string{"all but raw"}, map[string]string{"host name": eperm},
			map[string]string{"CapEff": "0000000000002000", "CapPrm": "0000000000002000",
				"CapInh": "0000000000000000", "CapBnd": "0000000000002000", "NoNewPrivs": "1"}},
		{"twice", []string{"all but raw", "all"},
			map[string]string{"raw socket": eperm, "packet socket": eperm, "host name": eperm},
			map[string]string{"CapEff": "0000000000000000"}},
		{"calls", []string{"calls"}, map[string]string{"host name": eperm, "execute": exec + eperm,
			"code": eperm, "strange socket": eperm},
			map[string]string{"Seccomp": "2", "NoNewPrivs": "1"}},
		{"paths", []string{"paths"}, map[string]string{"read passwd": eacces, "write": eacces,
			"make in /tmp": eacces, "execute": exec + eacces},
			map[string]string{"NoNewPrivs": "1"}},
		{"everything", []string{"all", "paths", "calls"}, map[string]string{
			"raw socket": eperm, "packet socket": eperm, "host name": eperm,
			"execute": exec + eperm, "code": eperm, "strange socket": eperm,
			"read passwd": eacces, "write": eacces, "make in /tmp": eacces},
			map[string]string{"CapEff": "0000000000000000", "Seccomp": "2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if slices.Contains(tt.what, "paths") {
				need.That(t, "landlock", err)
			}
			r := p.run(t, tt.what...)
			for _, name := range slices.Sorted(maps.Keys(r.Tried)) {
				want := tt.refused[name]
				if want == "" {
					want = "<nil>"
				}
				got := strings.Join(r.Tried[name], ", and on another thread ")
				if name == "strange socket" && want == "<nil>" &&
					strings.Contains(got, "not supported") {
					continue // a kernel without it
				}
				if got != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
			for name, want := range tt.status {
				if got := r.Tasks[name]; len(got) != 1 || got[0] != want {
					t.Errorf("%s of the threads is %q, want %s", name, got, want)
				}
			}
			if n := len(r.Tasks["Pid"]); n < 6 {
				t.Errorf("%d threads were looked at", n)
			}
		})
	}
}

// TestFilterProgram runs the filter in x/net's interpreter, which reads big-endian words.
func TestFilterProgram(t *testing.T) {
	program, err := filterProgram()
	if err != nil {
		t.Fatal(err)
	}
	decoded, ok := bpf.Disassemble(program)
	if !ok || len(program) > 4096 { // BPF_MAXINSNS
		t.Fatalf("%d instructions, all known: %v", len(program), ok)
	}
	vm, err := bpf.NewVM(decoded)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		arch   uint32
		number uint32
		args   [3]uint32
		want   uint32
	}{
		{"read", auditArch, unix.SYS_READ, [3]uint32{}, allowed},
		{"other processor", unix.AUDIT_ARCH_I386, unix.SYS_READ, [3]uint32{}, killed},
		{"x32", auditArch, 0x40000000 | unix.SYS_READ, [3]uint32{}, refused},
		{"execve", auditArch, unix.SYS_EXECVE, [3]uint32{}, refused},
		{"ptrace", auditArch, unix.SYS_PTRACE, [3]uint32{}, refused},
		{"map", auditArch, unix.SYS_BPF, [3]uint32{unix.BPF_MAP_CREATE}, refused},
		{"element", auditArch, unix.SYS_BPF, [3]uint32{unix.BPF_MAP_UPDATE_ELEM}, allowed},
		{"element's value", auditArch, unix.SYS_BPF, [3]uint32{unix.BPF_MAP_LOOKUP_ELEM}, allowed},
		{"element's end", auditArch, unix.SYS_BPF, [3]uint32{unix.BPF_MAP_DELETE_ELEM}, allowed},
		{"program", auditArch, unix.SYS_BPF, [3]uint32{unix.BPF_PROG_LOAD}, refused},
		{"attachment", auditArch, unix.SYS_BPF, [3]uint32{unix.BPF_LINK_CREATE}, allowed},
		{"thread", auditArch, unix.SYS_CLONE, [3]uint32{unix.CLONE_VM | unix.CLONE_THREAD},
			allowed},
		{"process", auditArch, unix.SYS_CLONE, [3]uint32{unix.CLONE_VM}, refused},
		{"clone3", auditArch, unix.SYS_CLONE3, [3]uint32{}, unknown},
		{"memory", auditArch, unix.SYS_MMAP, [3]uint32{0, 0, unix.PROT_READ}, allowed},
		{"code", auditArch, unix.SYS_MPROTECT, [3]uint32{0, 0, unix.PROT_EXEC}, refused},
		{"netlink", auditArch, unix.SYS_SOCKET, [3]uint32{unix.AF_NETLINK}, allowed},
		{"vsock", auditArch, unix.SYS_SOCKET, [3]uint32{unix.AF_VSOCK}, refused},
		{"name of memory", auditArch, unix.SYS_PRCTL, [3]uint32{unix.PR_SET_VMA}, allowed},
		{"own memory", auditArch, unix.SYS_PROCESS_VM_READV, [3]uint32{uint32(os.Getpid())},
			allowed},
		{"another's memory", auditArch, unix.SYS_PROCESS_VM_WRITEV, [3]uint32{1}, refused},
		{"dumpable", auditArch, unix.SYS_PRCTL, [3]uint32{unix.PR_SET_DUMPABLE}, refused},
	} {
		data := binary.BigEndian.AppendUint32(nil, tt.number)
		data = binary.BigEndian.AppendUint32(data, tt.arch)
		data = append(data, make([]byte, 8)...) // instruction_pointer
		for _, a := range tt.args {
			data = binary.BigEndian.AppendUint32(data, a)
			data = binary.BigEndian.AppendUint32(data, 0) // the high half
		}
		if got, err := vm.Run(data); err != nil || uint32(got) != tt.want {
			t.Errorf("%s: %#x, %v; want %#x", tt.name, got, err, tt.want)
		}
	}
}

// TestCallsOnce: no call is in the list twice, and none that is looked at is in it.
func TestCallsOnce(t *testing.T) {
	all := append(commonCalls(), archCalls()...)
	all = append(all, unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_MMAP, unix.SYS_MPROTECT,
		unix.SYS_SOCKET, unix.SYS_PRCTL)
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			t.Errorf("call %d is listed twice", all[i])
		}
	}
}
