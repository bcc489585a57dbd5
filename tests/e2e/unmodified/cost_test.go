package unmodified

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/overlay"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestKernelSocketCost counts the instructions that package net's seam adds to a call on a kernel's
// socket: those of the line that asks whether the socket is a slice's, and no other runs.
func TestKernelSocketCost(t *testing.T) {
	need.NetNS(t)
	const most = 5
	b := newBuilder(t)
	binary := b.overlaid(t, programs()[0])
	out, err := exec.Command("go", "env", "GOROOT").Output()
	must(t, err)
	files, err := overlay.NetPackage(strings.TrimSpace(string(out)),
		overlay.Target{GOARCH: goArch(t)})
	must(t, err)
	lines := seamLines(files)
	counted := 0
	for _, name := range []string{"Read", "Write", "accept", "readFromInet4", "readFromInet6",
		"writeToInet4", "writeToInet6", "readMsgInet4", "writeMsgInet4", "SetReadDeadline",
		"SetWriteDeadline"} {
		text := run(t, ".", "go", "tool", "objdump", "-s", `^net\.\(\*netFD\)\.`+name+`$`, binary)
		n := 0
		for _, line := range strings.Split(text, "\n") {
			words := strings.Fields(line)
			if len(words) < 4 || !lines[words[0]] {
				continue
			}
			if n++; strings.HasPrefix(words[3], "J") || strings.HasPrefix(words[3], "CB") {
				break // what is left of the line is the slice's
			}
		}
		if n > 0 {
			counted++
			t.Logf("netFD.%s: %d instructions", name, n)
		}
		if n > most {
			t.Errorf("netFD.%s: %d instructions on a kernel's socket, at most %d", name, n, most)
		}
	}
	if counted < 6 {
		t.Errorf("only %d functions have a seam", counted)
	}
}

// seamLines returns FILE:LINE of each line of package net that asks for a slice's socket.
func seamLines(files map[string][]byte) map[string]bool {
	asks := regexp.MustCompile(`^\tif \w+\.rdma != nil \{$`)
	lines := map[string]bool{}
	for path, text := range files {
		for i, line := range strings.Split(string(text), "\n") {
			if asks.MatchString(line) {
				lines[filepath.Base(path)+":"+strconv.Itoa(i+1)] = true
			}
		}
	}
	return lines
}

// TestSeamCost prints what a request costs a server built by rdma-netstack build, against the same
// server on package stack, in turns: the processor time of the process, and how many requests of
// one connection there are in a second.
func TestSeamCost(t *testing.T) {
	need.Long(t, "ten rounds of 4,000 requests to two servers")
	need.NetNS(t)
	const rounds, requests = 10, 4000
	b := newBuilder(t)
	seam, direct := b.overlaid(t, programs()[0]), b.plain(t, "direct", "./programs/direct")
	m := modes()[1]
	var spent, rate []float64
	for range rounds {
		with, took := requestTime(t, m.host, requests, seam, nil, m.env)
		without, tookDirect := requestTime(t, m.host, requests, direct,
			[]string{"eth0", sliceIP + "/24"}, nil)
		spent = append(spent, with/without)
		rate = append(rate, tookDirect.Seconds()/took.Seconds())
	}
	for what, ratios := range map[string][]float64{"processor time of a request": spent,
		"requests in a second": rate} {
		slices.Sort(ratios)
		t.Logf("%s, built against package stack: %.3f (%.3f to %.3f)", what,
			ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1])
	}
}

// requestTime returns the processor time, in ns, that a server takes for requests of one
// connection, one after the other, and how long they take.
func requestTime(t *testing.T, host string, requests int, binary string, args,
	env []string) (spent float64, took time.Duration) {
	t.Helper()
	t.Run(filepath.Base(binary), func(t *testing.T) {
		s := &session{dir: t.TempDir(), log: &lockedBuffer{}}
		s.host, s.outside = newNetwork(t)
		s.startProcess(t, binary, args, append([]string{"RUNTIME_DIRECTORY=" + s.dir}, env...))
		c := http.Client{Transport: &http.Transport{DialContext: s.outside.DialContext}}
		url := "http://" + host + "/?n=100"
		s.await(t, "answer", func() bool { return getAll(&c, url) == nil })
		for range requests / 10 {
			must(t, getAll(&c, url))
		}
		before, began := processTime(t, s.process.Pid), time.Now()
		for range requests {
			must(t, getAll(&c, url))
		}
		took = time.Since(began)
		spent = processTime(t, s.process.Pid) - before
	})
	return spent, took
}

func getAll(c *http.Client, url string) error {
	r, err := c.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// processTime returns the time, in ns, that the threads of a process have run.
func processTime(t *testing.T, pid int) (ns float64) {
	t.Helper()
	files, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	must(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // a thread that has ended
		}
		n, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		must(t, err)
		ns += n
	}
	return ns
}

// TestSeamInstructions counts the instructions that a request costs a server built by rdma-netstack
// build, against the same server on package stack, in turns. What a pair gives varies by 6 %, as
// the scheduler's turns count, too.
func TestSeamInstructions(t *testing.T) {
	need.Long(t, "twenty servers under valgrind")
	need.NetNS(t)
	const rounds, most = 5, 1.06
	valgrind := need.Tool(t, "valgrind")
	b := newBuilder(t)
	seam, direct := b.overlaid(t, programs()[0]), b.plain(t, "direct", "./programs/direct")
	m := modes()[1]
	perRequest := func(binary string, args, env []string) float64 {
		const few, many = 200, 1200 // the difference leaves out what a start costs
		return (serverInstructions(t, valgrind, m.host, many, binary, args, env) -
			serverInstructions(t, valgrind, m.host, few, binary, args, env)) / (many - few)
	}
	var ratios []float64
	for range rounds {
		with := perRequest(seam, nil, m.env)
		without := perRequest(direct, []string{"eth0", sliceIP + "/24"}, nil)
		ratios = append(ratios, with/without)
	}
	slices.Sort(ratios)
	median := ratios[rounds/2]
	t.Logf("instructions of a request, built against package stack: %.3f (%.3f to %.3f)", median,
		ratios[0], ratios[rounds-1])
	if median > most {
		t.Errorf("%.3f, want at most %.2f", median, most)
	}
}

// serverInstructions returns the instructions that a server runs for requests of one connection,
// and to start and end.
func serverInstructions(t *testing.T, valgrind, host string, requests int, binary string, args,
	env []string) (n float64) {
	t.Helper()
	t.Run(fmt.Sprint(filepath.Base(binary), " ", requests), func(t *testing.T) {
		s := &session{dir: t.TempDir(), log: &lockedBuffer{}}
		s.host, s.outside = newNetwork(t)
		out := filepath.Join(s.dir, "counts")
		cmd := exec.Command(valgrind, slices.Concat([]string{"-q", "--tool=cachegrind",
			"--cache-sim=no", "--cachegrind-out-file=" + out, binary}, args)...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, s.log, s.log
		cmd.Env = append(append(os.Environ(), "RUNTIME_DIRECTORY="+s.dir, "GOMAXPROCS=1",
			"GOGC=off", "GODEBUG=asyncpreemptoff=1"), env...) // what varies less
		must(t, s.host.Start(cmd))
		c := http.Client{Transport: &http.Transport{DialContext: s.outside.DialContext}}
		url := "http://" + host + "/?n=100"
		s.await(t, "answer", func() bool { return getAll(&c, url) == nil })
		for range requests {
			must(t, getAll(&c, url))
		}
		must(t, cmd.Process.Signal(syscall.SIGTERM))
		cmd.Wait() // by the signal
		text, err := os.ReadFile(out)
		must(t, err)
		_, sum, ok := strings.Cut(string(text), "\nsummary: ")
		if n, err = strconv.ParseFloat(strings.TrimSpace(sum), 64); !ok || err != nil {
			t.Fatalf("no summary: %v\n%s", err, s.log)
		}
	})
	return n
}
