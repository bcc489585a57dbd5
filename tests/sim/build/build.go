// Package build builds the command that runs worlds, with changes to Go's own packages that make
// goroutines run in an order which their input alone decides.
package build

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// change is text that replaces other text in a file below GOROOT/src.
type change struct{ file, old, new string }

// changes take away what differs from run to run with one processor: random numbers (select, order
// of maps, their hash functions), preemption by time, which also takes the processor from
// goroutines in system calls, the handing over of mutexes after a millisecond, and half a second of
// the machine's time that a web server sleeps before it closes a connection whose request it has
// not read.
var changes = []change{
	{"runtime/rand.go", `
	mp := getg().m
	c := &mp.chacha8
`, `
	if simulated {
		return simulatedState.next()
	}
	mp := getg().m
	c := &mp.chacha8
`},
	{"runtime/rand.go", `
	globalRand.state.Init(*seed)
`, `
	*seed = [32]byte{1}
	globalRand.state.Init(*seed)
`},
	{"runtime/rand.go", `
// rand32 is uint32(rand()), called from compiler-generated code.
`, `
// What is drawn for a select has numbers of its own, and all maps have one number: what a process
// does once, in its first world, draws some of the others.
var (
	simulated       bool
	simulatedState  splitMix
	simulatedSelect splitMix
	simulatedMaps   uint64
)

// Simulate makes random numbers follow from seed, and ends preemption. The scheduler looks at its
// global queue in each 61st turn: turns are counted from here.
func Simulate(seed uint64) {
	simulated, simulatedState = true, splitMix{seed}
	simulatedSelect, simulatedMaps = splitMix{seed + 1}, seed*0x9e3779b97f4a7c15
	getg().m.p.ptr().schedtick = 0
}

// splitMix is SplitMix64.
type splitMix struct{ state uint64 }

//go:nosplit
func (s *splitMix) next() uint64 {
	s.state += 0x9e3779b97f4a7c15
	z := s.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// selectRandn returns a number below n, for the cases of a select.
func selectRandn(n uint32) uint32 {
	if simulated {
		return uint32((uint64(uint32(simulatedSelect.next())) * uint64(n)) >> 32)
	}
	return cheaprandn(n)
}

// rand32 is uint32(rand()), called from compiler-generated code.
`},
	{"runtime/rand.go", `
func maps_rand() uint64 {
`, `
func maps_rand() uint64 {
	if simulated {
		return simulatedMaps
	}
`},
	{"runtime/select.go", `
		j := cheaprandn(uint32(norder + 1))
`, `
		j := selectRandn(uint32(norder + 1))
`},
	{"runtime/proc.go", `
func retake(now int64) uint32 {
`, `
func retake(now int64) uint32 {
	if simulated {
		return 0
	}
`},
	{"internal/sync/mutex.go", `
	starvationThresholdNs = 1e6
`, `
	starvationThresholdNs = 1e18
`},
	{"net/http/server.go", `
var rstAvoidanceDelay = 500 * time.Millisecond
`, `
var rstAvoidanceDelay time.Duration
`},
}

// Tag is the build tag of files that use the changed packages.
const Tag = "simulated"

// World builds the command into the file program. replaced has files of the module that others take
// the place of. It reports whether Go's own packages are the changed ones: those of another version
// of Go may differ too much, and runs then do not all repeat.
func World(program string, replaced map[string]string) (repeats bool, err error) {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	files, repeats, err := changed(dir)
	if err != nil {
		return false, err
	}
	for file, by := range replaced {
		files[file] = by
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": files})
	if err != nil {
		return false, err
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o644); err != nil {
		return false, err
	}
	args := []string{"build", "-overlay", overlay, "-o", program}
	if repeats {
		args = append(args, "-tags", Tag)
	}
	c := exec.Command("go", append(args, module+"/tests/sim/worlds")...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return false, fmt.Errorf("build tests/sim/worlds: %w\n%s", err, out)
	}
	return repeats, nil
}

const module = "github.com/rdma-netstack/rdma-netstack"

// changed writes the changed files of Go into dir, and returns which take the place of which; none
// if a change does not fit, or if Go is itself in the module cache, where go build replaces
// nothing.
func changed(dir string) (files map[string]string, fit bool, err error) {
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		return nil, false, fmt.Errorf("go env: %w", err)
	}
	root, cache, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	texts, fit, err := apply(filepath.Join(root, "src"))
	files = map[string]string{}
	if err != nil || !fit || strings.HasPrefix(root, cache+string(filepath.Separator)) {
		return files, false, err
	}
	for file, text := range texts {
		files[file] = filepath.Join(dir, fmt.Sprintf("%d.go", len(files)))
		if err := os.WriteFile(files[file], []byte(text), 0o644); err != nil {
			return nil, false, err
		}
	}
	return files, true, nil
}

// apply returns the texts of changed files by their names, false if a change does not fit.
func apply(src string) (texts map[string]string, fit bool, err error) {
	texts = map[string]string{}
	for _, c := range changes {
		file := filepath.Join(src, filepath.FromSlash(c.file))
		if texts[file] == "" {
			b, err := os.ReadFile(file)
			if err != nil {
				return nil, false, err
			}
			texts[file] = string(b)
		}
		if !strings.Contains(texts[file], c.old) {
			return nil, false, nil
		}
		texts[file] = strings.ReplaceAll(texts[file], c.old, c.new)
	}
	return texts, true, nil
}
