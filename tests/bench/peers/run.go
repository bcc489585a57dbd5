package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

const (
	// noisy is the number of processors in use by others above which a sample is repeated, if there
	// is time.
	noisy   = 0.3
	retries = 1
	// extraRounds is the number of rounds that extra peers take part in.
	extraRounds = 3
)

// measure does a whole run and saves the results.
func measure(ctx context.Context, f flags, stderr io.Writer) (*results, error) {
	if err := lab.CanMakeNets(); err != nil {
		return nil, fmt.Errorf("make network namespaces: %w (run as root)", err)
	}
	if f.profiles != "" {
		if err := os.MkdirAll(f.profiles, 0o755); err != nil {
			return nil, fmt.Errorf("make the directory of profiles: %w", err)
		}
	}
	for _, name := range []string{"wrk", "dnsperf", "ping", "ethtool", "ip"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%w (make bench-peers installs it)", err)
		}
	}
	dir, err := os.MkdirTemp("", "perf")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	files, err := writeFiles(dir)
	if err != nil {
		return nil, err
	}
	r := &session{flags: f, files: files, log: stderr, results: newResults(f)}
	defer r.close()
	if err := r.openArenas(ctx); err != nil {
		return nil, err
	}
	r.rounds(ctx)
	r.results.finish()
	if err := r.results.save(f.out); err != nil {
		return nil, err
	}
	return r.results, ctx.Err()
}

// session is a run in progress.
type session struct {
	flags   flags
	files   files
	log     io.Writer
	arenas  []*arena
	results *results
}

func (r *session) close() {
	for _, a := range r.arenas {
		_ = a.close()
	}
}

// openArenas sets up all configurations. A peer that does not work on this machine is recorded as
// such.
func (r *session) openArenas(ctx context.Context) error {
	for _, p := range peers() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.flags.quick && p.Extra || !r.flags.only.MatchString(p.Name) {
			continue
		}
		a, err := openArena(p, r.files.zone)
		if err != nil {
			fmt.Fprintln(r.log, "perf:", err)
			r.results.fail(p, "set up", err)
			if p.ours() {
				return err
			}
			continue
		}
		a.many = !r.flags.quick && manyPeers[p.Name]
		r.arenas = append(r.arenas, a)
		r.results.add(p)
	}
	if len(r.arenas) == 0 {
		return errors.New("nothing to measure")
	}
	return nil
}

// manyPeers are those whose memory is measured with 50,000 connections.
var manyPeers = map[string]bool{"kernel/veth": true, "fd-gso": true, "ours/tap": true}

// rounds runs every bench on every arena, bench by bench, so that noise affects all arenas alike.
func (r *session) rounds(ctx context.Context) {
	start, last := time.Now(), time.Duration(0) // duration of the last round
	for round := range r.flags.rounds {
		before := time.Since(start)
		if before+last > r.flags.budget {
			fmt.Fprintf(r.log, "perf: out of time after %d rounds\n", round)
			return
		}
		for _, b := range benches() {
			if r.skips(&b, round) {
				continue
			}
			for i := range r.arenas {
				a := r.arenas[(i+round)%len(r.arenas)] // the order rotates
				if ctx.Err() != nil {
					return
				}
				if b.takes(a.peer, round) {
					r.sample(ctx, a, b, round)
				}
			}
		}
		r.results.Rounds = round + 1
		last = time.Since(start) - before
		fmt.Fprintf(r.log, "perf: round %d done after %s\n", round+1,
			time.Since(start).Round(time.Second))
	}
}

func (r *session) skips(b *bench, round int) bool {
	return r.flags.quick && !b.quick || b.once && round > 0 || !r.flags.loads.MatchString(b.name)
}

// sample runs one bench on one arena, repeats it if others used the machine meanwhile, and keeps
// the sample with less noise.
func (r *session) sample(ctx context.Context, a *arena, b bench, round int) {
	var best *sample
	for range 1 + retries {
		s := &sample{arena: a, ctx: ctx, files: r.files, scale: r.flags.scale, out: metrics{}}
		if r.flags.profiles != "" {
			s.keep = filepath.Join(r.flags.profiles, profileName(a.Name, b.name, round))
		}
		if err := b.run(s); err != nil {
			fmt.Fprintf(r.log, "perf: %s: %s: %v\n", a.Name, b.name, err)
			r.results.fail(a.peer, b.name, err)
			return
		}
		if best == nil || s.noise < best.noise {
			best = s
		}
		if best.noise < noisy || b.once {
			break
		}
	}
	r.results.record(a.peer, b.name, best)
}
