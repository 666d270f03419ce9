package cloud

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
)

// Group is a security group.
type Group struct {
	ID, Name, ProjectID, Description string
	Rules                            []Rule
	Tags                             []string
	Revision                         int
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

// groupJSON is a security group in an answer.
type groupJSON struct {
	ID          string     `json:"id"`
	Name        string     `json:"name"`
	ProjectID   string     `json:"project_id"`
	Description string     `json:"description"`
	Rules       []ruleJSON `json:"security_group_rules"`
	Tags        []string   `json:"tags"`
	Revision    int        `json:"revision_number"`
}

type ruleJSON struct {
	ID          string  `json:"id,omitempty"`
	Group       string  `json:"security_group_id"`
	Description string  `json:"description,omitempty"`
	Direction   string  `json:"direction"`
	EtherType   string  `json:"ethertype"`
	Protocol    string  `json:"protocol,omitempty"`
	PortMin     *int    `json:"port_range_min,omitempty"`
	PortMax     *int    `json:"port_range_max,omitempty"`
	Remote      *prefix `json:"remote_ip_prefix,omitempty"`
	RemoteGroup string  `json:"remote_group_id,omitempty"`
}

func (j groupJSON) group() Group {
	g := Group{
		ID: j.ID, Name: j.Name, ProjectID: j.ProjectID, Description: j.Description,
		Tags: unempty(j.Tags), Revision: j.Revision,
	}
	for _, r := range j.Rules {
		g.Rules = append(g.Rules, r.rule())
	}
	return g
}

func (j ruleJSON) rule() Rule {
	r := Rule{
		ID: j.ID, Description: j.Description, Egress: j.Direction == "egress", IPv6: j.EtherType == "IPv6",
		Protocol: j.Protocol, RemoteGroup: j.RemoteGroup,
	}
	if j.PortMin != nil {
		r.PortMin = *j.PortMin
	}
	if j.PortMax != nil {
		r.PortMax = *j.PortMax
	}
	if j.Remote != nil {
		r.Remote = j.Remote.Prefix
	}
	return r
}

func (r Rule) json(group string) ruleJSON {
	j := ruleJSON{
		Group: group, Description: r.Description, Direction: "ingress", EtherType: "IPv4",
		Protocol: r.Protocol, RemoteGroup: r.RemoteGroup,
	}
	if r.Egress {
		j.Direction = "egress"
	}
	if r.IPv6 || r.Remote.Addr().Is6() {
		j.EtherType = "IPv6"
	}
	if r.PortMin > 0 {
		j.PortMin = &r.PortMin
	}
	if r.PortMax > 0 {
		j.PortMax = &r.PortMax
	}
	if r.Remote.IsValid() {
		j.Remote = &prefix{r.Remote}
	}
	return j
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
	j, err := find(ctx, c, "security-groups", idOrName, func(g groupJSON) bool { return g.ProjectID == c.project })
	return j.group(), err
}

// Groups returns the security groups with Cloud.Tag.
func (c *Cloud) Groups(ctx context.Context) ([]Group, error) {
	found, err := list[groupJSON](ctx, c, "security-groups", url.Values{"tags": {c.tag}})
	if err != nil {
		return nil, err
	}
	var all []Group
	for _, g := range found {
		all = append(all, g.group())
	}
	return all, nil
}

// CreateGroup returns the tagged security group with the name, or creates it. A new group
// has the rules that the cloud gives every group: all egress is allowed.
func (c *Cloud) CreateGroup(ctx context.Context, project, name, description string) (Group, error) {
	if project == "" {
		project = c.project
	}
	found, err := list[groupJSON](ctx, c, "security-groups", url.Values{"name": {name}, "project_id": {project}})
	if err != nil {
		return Group{}, err
	}
	at := slices.IndexFunc(found, func(g groupJSON) bool { return c.isOurs(g.Tags, g.Description) })
	var g groupJSON
	if at >= 0 {
		g = found[at]
	} else {
		g, err = create[groupJSON](ctx, c, "security-groups", map[string]any{
			"name": name, "project_id": project, "description": c.describe(description),
		})
		if err != nil {
			return Group{}, err
		}
	}
	if g, err = tagged(ctx, c, "security-groups", g.ID, g.Tags, g); err != nil {
		return Group{}, err
	}
	return g.group(), nil
}

// DeleteGroup deletes a group; nil if it is gone. Errors: ErrInUse.
func (c *Cloud) DeleteGroup(ctx context.Context, id string) error {
	return c.remove(ctx, "security-groups", id)
}

// AddRules adds rules to a group with one request; rules that it has already stay and are
// no error. It returns the rules that it added. Errors: ErrQuota, ErrNotFound, ErrInvalid,
// ErrTaken (another added one of them meanwhile, and none was added: call again).
func (c *Cloud) AddRules(ctx context.Context, group string, rules []Rule) ([]Rule, error) {
	g, err := read[groupJSON](ctx, c, "security-groups", group)
	if err != nil {
		return nil, err
	}
	has := map[Rule]bool{}
	for _, r := range g.Rules {
		has[r.rule().key()] = true
	}
	var missing []ruleJSON
	for _, r := range rules {
		if !has[r.key()] {
			has[r.key()] = true
			missing = append(missing, r.json(group))
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	var answer struct {
		Rules []ruleJSON `json:"security_group_rules"`
	}
	if err := c.do(ctx, request{
		call: "create security group rules", method: http.MethodPost, path: []string{"security-group-rules"},
		body: map[string]any{"security_group_rules": missing}, into: &answer,
	}); err != nil {
		return nil, err
	}
	if len(answer.Rules) < len(missing) {
		return nil, translate("create security group rules", errors.New("the answer lacks rules"))
	}
	var added []Rule
	for _, r := range answer.Rules {
		added = append(added, r.rule())
	}
	return added, nil
}

// DeleteRule deletes a rule; nil if it is gone.
func (c *Cloud) DeleteRule(ctx context.Context, id string) error {
	return c.remove(ctx, "security-group-rules", id)
}
