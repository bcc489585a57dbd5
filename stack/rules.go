package stack

import "github.com/rdma-netstack/rdma-netstack/link/rdma"

// Rule is a rule of the device, or one that waits for a device.
type Rule = rdma.RuleInfo

// Rules lists the rules by which the device leads frames to the stack, in the order in which they
// count, and those that wait for a device. It asks the device for the counts. Empty if the link is
// not one of package link/rdma.
func (s *Stack) Rules() []Rule {
	if s.link == nil {
		return nil
	}
	return s.link.Rules()
}
