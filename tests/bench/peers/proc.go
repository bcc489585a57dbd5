package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// proc is a child process seen from this one.
type proc struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startChild starts a child in a namespace and returns when it is ready.
func startChild(at *lab.Net, spec childSpec) (*proc, error) {
	arg, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", childCommand, string(arg))
	cmd.Stderr = os.Stderr
	// every stack has the buffers of host.go
	cmd.Env = append(os.Environ(), "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING=true")
	p := &proc{cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	if err := at.Start(cmd); err != nil {
		return nil, err
	}
	if _, err := p.reply(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *proc) reply() (r reply, err error) {
	if err := p.out.Decode(&r); err != nil {
		return r, fmt.Errorf("child process is gone: %w", err)
	}
	if r.Err != "" {
		err = errors.New(r.Err)
	}
	return r, err
}

// ask sends a request and waits for its reply.
func (p *proc) ask(q request) (reply, error) {
	if err := json.NewEncoder(p.in).Encode(q); err != nil {
		return reply{}, fmt.Errorf("child process is gone: %w", err)
	}
	return p.reply()
}

// load runs a load in the child.
func (p *proc) load(l load) (metrics, error) {
	r, err := p.ask(request{Op: "load", Load: &l})
	return r.Metrics, err
}

// close ends the child, after a short time to end by itself.
func (p *proc) close() error {
	p.in.Close()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Second):
		_ = p.cmd.Process.Kill()
		<-done
	}
	return nil
}
