package cloud

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
)

// Group is a security group.
type Group struct {
	ID          string
	Name        string
	ProjectID   string `json:"project_id"`
	Description string
	Rules       []Rule `json:"security_group_rules"`
	Tags        []string
	Revision    int `json:"revision_number"`
}

// Rule allows traffic. Neutron's rules only allow.
type Rule struct {
	ID, Description string
	Egress          bool
	IPv6            bool
	Protocol        string // empty: all
	PortMin         int    // 0: all; for ICMP the type
	PortMax         int
	Remote          netip.Prefix // invalid: all
	RemoteGroup     string
}

// UnmarshalJSON reads a rule of an answer.
func (r *Rule) UnmarshalJSON(b []byte) error {
	var j rules.SecGroupRule
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*r = Rule{
		ID: j.ID, Description: j.Description, Egress: j.Direction == string(rules.DirEgress), IPv6: j.EtherType == string(rules.EtherType6),
		Protocol: j.Protocol, PortMin: j.PortRangeMin, PortMax: j.PortRangeMax, Remote: readPrefix(j.RemoteIPPrefix), RemoteGroup: j.RemoteGroupID,
	}
	return nil
}

// body returns the rule in a request.
func (r Rule) body(group string) rules.CreateOpts {
	o := rules.CreateOpts{
		SecGroupID: group, Description: r.Description, Direction: rules.DirIngress, EtherType: rules.EtherType4,
		Protocol: rules.RuleProtocol(r.Protocol), PortRangeMin: r.PortMin, PortRangeMax: r.PortMax, RemoteGroupID: r.RemoteGroup,
	}
	if r.Egress {
		o.Direction = rules.DirEgress
	}
	if r.IPv6 || r.Remote.Addr().Is6() {
		o.EtherType = rules.EtherType6
	}
	if r.Remote.IsValid() {
		o.RemoteIPPrefix = writePrefix(r.Remote)
	}
	return o
}

// key is the rule as Neutron compares rules: without ID and description.
func (r Rule) key() Rule {
	r.ID, r.Description = "", ""
	r.IPv6 = r.IPv6 || r.Remote.Addr().Is6()
	if r.Remote.IsValid() {
		r.Remote = r.Remote.Masked()
	}
	if r.Remote.Bits() == 0 {
		r.Remote = netip.Prefix{} // all addresses, as without a prefix
	}
	return r
}

// Groups are the security groups of Neutron, with their rules. It is safe for concurrent use.
type Groups struct{ api *api }

// Group reads a security group by ID or unique name of the project. Errors: ErrNotFound, ErrInvalid.
func (g *Groups) Group(ctx context.Context, idOrName string) (Group, error) {
	if isID(idOrName) {
		return read[Group](ctx, g.api, "security group", idOrName, groups.Get)
	}
	found, err := list[Group](ctx, g.api, "security-groups", groups.ListOpts{Name: idOrName})
	return only("security group", idOrName, found, err, func(o Group) owned { return g.api.owned(o.ID, o.ProjectID, false) })
}

// Groups returns the security groups with Cloud.Tag.
func (g *Groups) Groups(ctx context.Context) ([]Group, error) {
	return list[Group](ctx, g.api, "security-groups", groups.ListOpts{Tags: g.api.tag})
}

// CreateGroup returns the tagged security group with the name, or creates it. A new group
// has the rules that the cloud gives every group: all egress is allowed.
func (g *Groups) CreateGroup(ctx context.Context, project, name, description string) (Group, error) {
	project = cmp.Or(project, g.api.project)
	found, err := list[Group](ctx, g.api, "security-groups", groups.ListOpts{Name: name, ProjectID: project})
	if err != nil {
		return Group{}, err
	}
	found = slices.DeleteFunc(found, func(o Group) bool { return !g.api.isOurs(o.Tags, o.Description) })
	if len(found) == 0 {
		made, err := object[Group](ctx, g.api, "create security group", "security_group", func(ctx context.Context) gophercloud.Result {
			return groups.Create(ctx, g.api.neutron, groups.CreateOpts{Name: name, ProjectID: project, Description: g.api.describe(description)}).Result
		})
		if err != nil {
			return Group{}, err
		}
		found = append(found, made)
	}
	return tagged(ctx, g.api, "security-groups", tags{found[0].ID, found[0].Tags}, found[0], groups.Get)
}

// DeleteGroup deletes a group; nil if it is gone. Errors: ErrInUse.
func (g *Groups) DeleteGroup(ctx context.Context, id string) error {
	return remove(ctx, g.api, "delete security group", id, groups.Delete)
}

// AddRules adds rules to a group with one request; rules that it has already stay and are
// no error. It returns the rules that it added. Errors: ErrQuota, ErrNotFound, ErrInvalid,
// ErrTaken (another added one of them meanwhile, and none was added: call again).
func (g *Groups) AddRules(ctx context.Context, group string, all []Rule) ([]Rule, error) {
	have, err := read[Group](ctx, g.api, "security group", group, groups.Get)
	if err != nil {
		return nil, err
	}
	has := map[Rule]bool{}
	for _, r := range have.Rules {
		has[r.key()] = true
	}
	var missing []rules.CreateOpts
	for _, r := range all {
		if !has[r.key()] {
			has[r.key()] = true
			missing = append(missing, r.body(group))
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	const call = "create security group rules"
	added, err := object[[]Rule](ctx, g.api, call, "security_group_rules", func(ctx context.Context) gophercloud.Result {
		return rules.CreateBulk(ctx, g.api.neutron, missing).Result
	})
	if err != nil {
		return nil, err
	}
	if len(added) < len(missing) {
		return nil, translate(call, errors.New("the answer lacks rules"))
	}
	return added, nil
}

// DeleteRule deletes a rule; nil if it is gone.
func (g *Groups) DeleteRule(ctx context.Context, id string) error {
	return remove(ctx, g.api, "delete security group rule", id, rules.Delete)
}
