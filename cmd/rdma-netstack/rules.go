package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

func rulesCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{Use: "rules", Short: "what NICs lead to running servers", Args: noWords,
		Long: `Lists the rules by which NICs lead frames to running servers, in the order in which they count: a
frame goes by the first that matches, those that no rule matches go to Linux. All of them come
before those of ethtool -N and tc.

    PRIO    0 to 15; of rules with the same, the order is not defined where they overlap
    OWNER   process, and the tag that keeps others from the same frames; shared: others
            may join
    PACKETS what matched since the device was opened; - where the device does not count`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.listRules(cmd.Context(), out) }}
	f.addTo(cmd)
	return cmd
}

// ownedRule describes a rule and the server that has it.
type ownedRule struct {
	PID int `json:"pid"`
	stack.Rule
}

func (f *lookFlags) listRules(ctx context.Context, out streams) error {
	servers, err := f.servers(ctx)
	if err != nil {
		return err
	}
	all := []ownedRule{}
	for _, s := range servers {
		var rules []stack.Rule
		if err := s.Get(ctx, "/rules", &rules); err != nil {
			return err
		}
		for _, r := range rules {
			all = append(all, ownedRule{s.PID, r})
		}
	}
	if f.json {
		return json.NewEncoder(out.stdout).Encode(all)
	}
	t := tabwriter.NewWriter(out.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PRIO\tMATCH\tTO\tOWNER\tPACKETS\tBYTES")
	for _, r := range all {
		packets, bytes := "-", "-"
		if r.Counted {
			packets, bytes = fmt.Sprint(r.Packets), fmt.Sprint(r.Bytes)
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n", r.Priority, r.Match, r.destination(), r.owner(),
			packets, bytes)
	}
	return t.Flush()
}

// destination returns where the frames go, or why they do not.
func (r *ownedRule) destination() string {
	if r.Waiting != "" {
		return "waits: " + r.Waiting
	}
	return r.To
}

func (r *ownedRule) owner() string {
	switch {
	case r.Waiting != "":
		return fmt.Sprint(r.PID)
	case r.Tag == 0:
		return fmt.Sprintf("%d, shared", r.PID)
	}
	return fmt.Sprintf("%d, tag %#06x", r.PID, r.Tag)
}

// servers returns all that run, or the one that the flags mean.
func (f *lookFlags) servers(ctx context.Context) ([]running.Server, error) {
	if f.pid != 0 {
		s, err := f.server(ctx)
		return []running.Server{s}, err
	}
	all, err := running.Find(ctx, running.Directories(os.Getenv))
	if err == nil && len(all) == 0 {
		err = running.ErrNone
	}
	return all, err
}
