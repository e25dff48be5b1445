//! Hosts, nodes between them, links, and the cells of each direction.

use evlbi_core::path::Law;
use evlbi_core::time::Nanos;

/// A path's plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Hosts and switches.
    pub nodes: Vec<Node>,
    /// Links between nodes, which form a tree.
    pub links: Vec<Link>,
    /// Maximum packet length of the hosts' devices in bytes, without link-layer header.
    pub mtu: u32,
    /// Seed of all random numbers.
    pub seed: u64,
    /// For each node, the next direction towards each other node.
    towards: Vec<Vec<Option<Direction>>>,
}

/// A host, or a switch between links.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Settings of the host, if it is one.
    pub host: Option<Host>,
}

/// Settings of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// TCP congestion control algorithm.
    pub congestion: Option<String>,
    /// Maximum size of TCP buffers, in bytes.
    pub buffer: Option<u64>,
}

/// A link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The nodes at its ends.
    pub ends: [usize; 2],
    /// Cells from the first end to the second.
    pub forward: Vec<CellPlan>,
    /// Cells from the second end to the first.
    pub backward: Vec<CellPlan>,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellPlan {
    /// Its name, unique in its direction.
    pub name: String,
    /// Its law.
    pub law: Law,
    /// Later laws, each with the time from which it applies.
    pub changes: Vec<(Nanos, Law)>,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Direction {
    /// The link.
    pub link: usize,
    /// Whether it leads from the second end to the first.
    pub backward: bool,
}

/// Reason why a plan is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Two nodes are connected twice.
    #[error("link {name} closes a loop; remove one link, since the links must form a tree")]
    Loop {
        /// The superfluous link.
        link: usize,
        /// Its name.
        name: String,
    },
    /// A node is not linked to the others.
    #[error(
        "{name} is not connected to {other}; add a [[link]] between them, or to a node between them"
    )]
    Apart {
        /// The node.
        node: usize,
        /// Its name.
        name: String,
        /// Name of the first node.
        other: String,
    },
}

impl Plan {
    /// Creates a plan with its routes.
    ///
    /// # Errors
    /// Returns [`PlanError`] if the links do not form a tree of all nodes.
    pub fn new(
        name: String,
        nodes: Vec<Node>,
        links: Vec<Link>,
        mtu: u32,
        seed: u64,
    ) -> Result<Plan, PlanError> {
        let mut plan = Plan {
            name,
            mtu,
            seed,
            towards: vec![vec![None; nodes.len()]; nodes.len()],
            nodes,
            links,
        };
        let mut part: Vec<usize> = (0..plan.nodes.len()).collect();
        for (number, link) in plan.links.iter().enumerate() {
            let [a, b] = link.ends.map(|end| part[end]);
            if a == b {
                return Err(PlanError::Loop {
                    link: number,
                    name: link.name.clone(),
                });
            }
            part.iter_mut()
                .filter(|of| **of == b)
                .for_each(|of| *of = a);
        }
        if let Some(node) = part.iter().position(|of| *of != part[0]) {
            return Err(PlanError::Apart {
                node,
                name: plan.nodes[node].name.clone(),
                other: plan.nodes[0].name.clone(),
            });
        }
        for target in 0..plan.nodes.len() {
            let mut reached = vec![target];
            while let Some(node) = reached.pop() {
                for direction in plan.leaving(node) {
                    let other = plan.to(direction);
                    if other != target && plan.towards[other][target].is_none() {
                        let mut back = direction;
                        back.backward = !direction.backward;
                        plan.towards[other][target] = Some(back);
                        reached.push(other);
                    }
                }
            }
        }
        Ok(plan)
    }

    /// Returns the seed of the random numbers of a direction's cells.
    pub fn seed_of(&self, direction: Direction) -> u64 {
        let number = 2 * direction.link as u64 + u64::from(direction.backward);
        self.seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns the hosts' nodes, in their order.
    pub fn hosts(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].host.is_some())
    }

    /// Returns the number of the host at a node.
    pub fn host_at(&self, node: usize) -> Option<usize> {
        self.hosts().position(|host| host == node)
    }

    /// Returns the node of a host.
    pub fn node_of(&self, host: usize) -> usize {
        self.hosts().nth(host).unwrap_or(0)
    }

    /// Returns the cells of a direction.
    pub fn cells(&self, direction: Direction) -> &[CellPlan] {
        let link = &self.links[direction.link];
        [&link.forward, &link.backward][usize::from(direction.backward)]
    }

    /// Returns the start node of a direction.
    pub fn from(&self, direction: Direction) -> usize {
        self.links[direction.link].ends[usize::from(direction.backward)]
    }

    /// Returns the end node of a direction.
    pub fn to(&self, direction: Direction) -> usize {
        self.links[direction.link].ends[usize::from(!direction.backward)]
    }

    /// Returns the direction as text: `jive>manchester`.
    pub fn show(&self, direction: Direction) -> String {
        let name = |node: usize| &self.nodes[node].name;
        format!(
            "{}>{}",
            name(self.from(direction)),
            name(self.to(direction))
        )
    }

    /// Returns all directions that leave a node.
    pub fn leaving(&self, node: usize) -> Vec<Direction> {
        self.directions()
            .filter(|direction| self.from(*direction) == node)
            .collect()
    }

    /// Returns all directions.
    pub fn directions(&self) -> impl Iterator<Item = Direction> + use<> {
        (0..self.links.len())
            .flat_map(|link| [false, true].map(|backward| Direction { link, backward }))
    }

    /// Returns the first direction of the route from a node to another.
    pub fn next(&self, node: usize, target: usize) -> Option<Direction> {
        self.towards[node][target]
    }

    /// Returns groups of directions that packets may take in sequence, or that leave the same host: one thread serves each group.
    pub fn groups(&self) -> Vec<Vec<Direction>> {
        let all: Vec<Direction> = self.directions().collect();
        let mut of: Vec<usize> = (0..all.len()).collect();
        for (x, a) in all.iter().enumerate() {
            for (y, b) in all.iter().enumerate() {
                let follows = self.to(*a) == self.from(*b) && a.link != b.link;
                let from = self.from(*a);
                let one_host = from == self.from(*b) && self.nodes[from].host.is_some();
                if follows || one_host {
                    let (keep, gone) = (of[x], of[y]);
                    of.iter_mut()
                        .filter(|of| **of == gone)
                        .for_each(|of| *of = keep);
                }
            }
        }
        let mut groups = vec![Vec::new(); all.len()];
        for (direction, of) in all.into_iter().zip(of) {
            groups[of].push(direction);
        }
        groups.retain(|group| !group.is_empty());
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(nodes: &[(&str, bool)], links: &[[usize; 2]]) -> Result<Plan, PlanError> {
        let nodes = nodes.iter().map(|(name, is_host)| Node {
            name: (*name).into(),
            host: is_host.then(Host::default),
        });
        let links = links.iter().enumerate().map(|(number, ends)| Link {
            name: format!("link{number}"),
            ends: *ends,
            forward: Vec::new(),
            backward: Vec::new(),
        });
        Plan::new("test".into(), nodes.collect(), links.collect(), 1500, 1)
    }

    #[test]
    fn routes_follow_the_links() {
        let star = [("a", true), ("b", true), ("c", true), ("x", false)];
        let plan = plan(&star, &[[0, 3], [1, 3], [3, 2]]).unwrap();
        let way = |from: usize, to: usize| {
            let mut at = from;
            let mut shown = vec![plan.nodes[at].name.clone()];
            while let Some(direction) = plan.next(at, to) {
                at = plan.to(direction);
                shown.push(plan.nodes[at].name.clone());
            }
            shown.concat()
        };
        assert_eq!(way(0, 2), "axc");
        assert_eq!(way(2, 1), "cxb");
        assert_eq!(way(1, 1), "b");
        assert_eq!(plan.groups().len(), 1);
        assert_eq!(plan.hosts().count(), 3);
    }

    #[test]
    fn directions_that_share_nothing_have_threads_of_their_own() {
        let chain = [("a", true), ("x", false), ("y", false), ("b", true)];
        let plan = plan(&chain, &[[0, 1], [2, 1], [2, 3]]).unwrap();
        let mut groups = plan.groups();
        groups.sort_by_key(Vec::len);
        assert_eq!(groups.len(), 2);
        let shown = |group: &[Direction]| {
            let shown = group.iter().map(|direction| plan.show(*direction));
            shown.collect::<Vec<String>>().join(" ")
        };
        assert_eq!(shown(&groups[0]), "a>x x>y y>b");
        assert_eq!(shown(&groups[1]), "x>a y>x b>y");
    }

    #[test]
    fn loops_and_islands_are_refused() {
        let three = [("a", true), ("b", true), ("c", true)];
        let error = plan(&three, &[[0, 1], [1, 2], [2, 0]]).unwrap_err();
        assert!(matches!(error, PlanError::Loop { link: 2, .. }));
        let error = plan(&three, &[[0, 1]]).unwrap_err();
        assert!(matches!(error, PlanError::Apart { node: 2, .. }));
    }
}
