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

// Group reads a security group by ID or unique name of the project. Errors: ErrNotFound, ErrInvalid.
func (c *Cloud) Group(ctx context.Context, idOrName string) (Group, error) {
	if isID(idOrName) {
		return c.group(ctx, idOrName)
	}
	found, err := list[Group](ctx, &c.api, "security-groups", groups.ListOpts{Name: idOrName})
	return only("security group", idOrName, found, err, func(g Group) (string, bool) { return g.ID, g.ProjectID == c.api.project })
}

// group reads a security group by ID.
func (c *Cloud) group(ctx context.Context, id string) (Group, error) {
	return object[Group](ctx, &c.api, "read security group", "security_group", func(ctx context.Context) gophercloud.Result {
		return groups.Get(ctx, c.api.neutron, id).Result
	}, id)
}

// Groups returns the security groups with Cloud.Tag.
func (c *Cloud) Groups(ctx context.Context) ([]Group, error) {
	return list[Group](ctx, &c.api, "security-groups", groups.ListOpts{Tags: c.api.tag})
}

// CreateGroup returns the tagged security group with the name, or creates it. A new group
// has the rules that the cloud gives every group: all egress is allowed.
func (c *Cloud) CreateGroup(ctx context.Context, project, name, description string) (Group, error) {
	project = cmp.Or(project, c.api.project)
	found, err := list[Group](ctx, &c.api, "security-groups", groups.ListOpts{Name: name, ProjectID: project})
	if err != nil {
		return Group{}, err
	}
	at := slices.IndexFunc(found, func(g Group) bool { return c.api.isOurs(g.Tags, g.Description) })
	var g Group
	if at >= 0 {
		g = found[at]
	} else {
		g, err = object[Group](ctx, &c.api, "create security group", "security_group", func(ctx context.Context) gophercloud.Result {
			return groups.Create(ctx, c.api.neutron, groups.CreateOpts{Name: name, ProjectID: project, Description: c.api.describe(description)}).Result
		})
		if err != nil {
			return Group{}, err
		}
	}
	return tagged(ctx, &c.api, "security-groups", g.ID, g.Tags, g, c.group)
}

// DeleteGroup deletes a group; nil if it is gone. Errors: ErrInUse.
func (c *Cloud) DeleteGroup(ctx context.Context, id string) error {
	return remove(ctx, &c.api, "delete security group", id, groups.Delete)
}

// AddRules adds rules to a group with one request; rules that it has already stay and are
// no error. It returns the rules that it added. Errors: ErrQuota, ErrNotFound, ErrInvalid,
// ErrTaken (another added one of them meanwhile, and none was added: call again).
func (c *Cloud) AddRules(ctx context.Context, group string, all []Rule) ([]Rule, error) {
	g, err := c.group(ctx, group)
	if err != nil {
		return nil, err
	}
	has := map[Rule]bool{}
	for _, r := range g.Rules {
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
	added, err := object[[]Rule](ctx, &c.api, call, "security_group_rules", func(ctx context.Context) gophercloud.Result {
		return rules.CreateBulk(ctx, c.api.neutron, missing).Result
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
func (c *Cloud) DeleteRule(ctx context.Context, id string) error {
	return remove(ctx, &c.api, "delete security group rule", id, rules.Delete)
}
